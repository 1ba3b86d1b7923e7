"""RouteWeaver's own run: Qwen3-4B-Instruct-2507 trained with COMET-GRPO against the paper's six Workers (Appendix C.3).

    rw train --config configs/qwen3_4b.py --dry-run           # calls, USD, memory of each device; asks nobody
    sbatch launch/slurm.sbatch --config configs/qwen3_4b.py   # 8 A100-80G; or launch/tpu_pod.sh, launch/k8s_jobset.yaml
    rw evaluate --config configs/qwen3_4b.py --checkpoint runs/qwen3_4b   # afterwards, on what is held out, too

It needs the weights in checkpoints/Qwen3-4B-Instruct-2507 (as Hugging Face has them, or as `rw convert --from-hf` saves
them), the Workers of configs/workers/paper_six.yaml (worker_1 and worker_2 where every host reaches them: in a cluster,
put their addresses there), a key for OpenRouter, and a run's directory that all hosts see.

Questions: the paper's seven sets to train on, mixed by its quotas, its nine to test with, and three that are held out
altogether, which `rw evaluate` asks. 100 batches' worth of each are 3,200, of which 90 batches of 32 see nine tenths;
which ones the paper took of its sets is not known. They are prepared once, what is held out first (`hub` downloads with
rw[data]; a path of files that you have does as well):

    prepare() { rw data prepare --input hub --dataset $1 --split $2 --limit $3 ${@:4} --tokenizer qwen3 \\
      --output data/prepared/$1.$2.jsonl; }
    prepare math test 120 --levels 2-5
    for set in omni_math apps live_code_bench super_gpqa sat_bench trivia_qa simple_qa_verified; do
      prepare $set test 120; done
    prepare taco test 100
    prepare aime test 149; prepare gpqa_diamond test 198; prepare bbh test 40 --per task
    for set in math:350 omni_math:350 apps:400 live_code_bench:300 super_gpqa:600 sat_bench:700 trivia_qa:500; do
      prepare ${set%:*} train ${set#*:} --disjoint-from data/prepared/*.test.jsonl; done

Which years the paper's 149 of AIME are of is not known; the hub's set has three. GPQA is given out to those who accept
its terms. A set that you do not have is left out of `data.held_out_files`.

The answers to Code are programs, which run in a sandbox on every host: `rw doctor` says whether one works. What
Appendix C names is the default of rw/run_config.py and not repeated: below are questions, Workers, weights, and what
the hardware decides. As in the paper the last router is tested, none is chosen by validation. The run stops before it
has spent 50 USD (`budget.run_usd`).

GiB on each device (rw/memory.py does the arithmetic, `--dry-run` prints parts): always, more while rolling out, more
while learning, at most, and of how many. On GPUs a program gets 0.92 of the card, which the launch files set.

    devices           always  rollouts  learning  at most     of  keys (--config.KEY)
    8 A100-80G          8.43     55.61     13.84    64.04  73.60
    v5p-16, 8 chips     9.37     61.89     11.87    71.25  95.00  model.attention=splash mesh.fsdp=2 mesh.tensor=4
                                                                  engine.kv_bytes=170_000_000_000
                                                                  engine.decode_widths=16,32
    v5e-32, 32 chips    3.75      7.70      3.07    11.45  15.75  model.attention=splash mesh.fsdp=8 mesh.tensor=4
                                                                  engine.kv_bytes=20_000_000_000
                                                                  engine.decode_widths=4,

Always: parameters, two moments and the reference in float32, split over the mesh, and the sampler's bfloat16 copy,
split over `mesh.tensor` alone. Rollouts: a token's keys and values take 144 KiB, over `mesh.tensor` again; the pool may
grow to `engine.kv_bytes` on a host, here enough for 256 rollouts of 7,400 tokens or 100 of 18,432, and a dispatch
copies as many contexts of 18,432 as it is wide. Beside them lies what the reference needs as groups arrive. Further
hosts multiply by `mesh.data` (and `batch.micro_batch`, which data × fsdp must divide).

Hours, by arithmetic: a batch of 256 rows of 4,096 tokens takes 4.9e16 FLOP (10 a parameter and token: reference,
policy, its layers again, backward; and attention), one of 18,432 3.2e17: 61 s and 398 s at 100 TFLOP/s a GPU, a third
of an A100's peak. Eight calls, one after another, of 512 reply tokens at 50 tokens/s take 82 s, of 4,096 655 s. With
77 s for the router's own 154,000 tokens at 2,000 tokens/s a step is 220 s, and 90 steps are 5.5 hours; 28 if every
row and reply were as long as they may be. Not in it: compiling, for every shape that comes up once a start,
checkpoints of 45 GiB every tenth step, and the test.

Workers, at the frozen prices: 80,000 calls for 15.1 USD (low 0.253, worst 569), where questions have 300 tokens on
average and 3,000 at most, an assumption from small samples of the sets. `--dry-run` counts the tokens that they have,
and says what low, typical and worst assume (rw/estimate.py); it takes what was measured once the run's ledger has 20
calls. In the paper, after the cold start, 95 % of the rollouts cost less than 0.0071 USD, 163 USD for all 23,040.

Checked without the hardware: tests/benchmarks/memory_aot.py compiles the programs of a step for devices that are not
here. Beside parameters and gradient sum, one micro-batch at 18,432 tokens takes on each device, in GiB, estimated and
compiled, over meshes of (fsdp, tensor): with 8 A100 (1, 8) 11.96 and 11.08, (2, 4) 10.00 and 9.52, (4, 2) 9.08 and
9.25, (8, 1) 8.84 and 8.27, under chunked_xla, since there is no cuDNN without a card; with v5p-16 (2, 4) 10.00 and
10.32 and with v5e-32 (8, 4) 2.61 and 2.87 at the peak, under splash (the compiler sets aside 15.89 and 5.32 there,
which fits as well). The update adds 0.42 on an A100; there a dispatch of 64 rows holds 21.19 and adds 0.05. No speed
was measured on A100 or TPU, no hour and no USD of such a run.
"""

from rw.config import default_config

TRAINED = ("math", "omni_math", "apps", "live_code_bench", "super_gpqa", "sat_bench", "trivia_qa")
TESTED_TOO = ("simple_qa_verified", "taco")
HELD_OUT = ("aime", "gpqa_diamond", "bbh")


def get_config():
    config = default_config()
    config.data.source = "files"
    config.data.train_files = tuple(f"data/prepared/{name}.train.jsonl" for name in TRAINED)
    config.data.test_files = tuple(f"data/prepared/{name}.test.jsonl" for name in (*TRAINED, *TESTED_TOO))
    config.data.held_out_files = tuple(f"data/prepared/{name}.test.jsonl" for name in HELD_OUT)
    config.data.quotas = ("paper",)
    config.evaluation.test_queries = 1060
    config.workers.kind = "http"
    config.workers.file = "configs/workers/paper_six.yaml"
    config.budget.run_usd = 50.0
    config.evaluation.every = 0

    config.init.source = "params"
    config.init.path = "checkpoints/Qwen3-4B-Instruct-2507"
    config.tokenizer.path = "qwen3"
    config.model.param_dtype = "float32"  # an update of 1e-6 would be lost in bfloat16
    config.model.compute_dtype = "bfloat16"
    config.model.attention = "cudnn"  # TPU: splash; chunked_xla runs anywhere, and is slower
    config.model.attention_chunk = 512  # of the sampler's prefill, and of chunked_xla
    config.model.remat = "nothing_saveable"

    config.mesh.tensor = 8  # one node: the sampler's cache is split over tensor alone
    config.engine.slots = 96
    config.engine.kv_bytes = 280_000_000_000
    config.engine.lengths = (2048, 4096, 8192, 18_432)
    config.engine.decode_widths = (16, 64)
    config.engine.prefill_rows = (1, 4)
    config.engine.prefill_chunk = 512
    config.engine.prefill_tokens = 16_384
    config.batch.micro_batch = 8
    config.batch.length_buckets = (2048, 4096, 8192, 18_432)
    config.batch.policy_buckets = (256, 1024, 4096)
    config.batch.logprob_chunk = 256

    config.checkpoint.every = 10
    config.checkpoint.keep = 2
    return config
