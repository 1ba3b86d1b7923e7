"""A directory written aside takes nothing from its neighbours."""

from rw.aside import written_aside


def test_only_what_a_killed_process_left_is_removed(tmp_path):
    own = ("out.partial", "out.replaced", "out.partial.orbax-checkpoint-tmp-17")
    others = ("out.partial-mine", "out.partial_notes", "out.replaced.old", "out2.partial")
    for name in (*own, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "out").mkdir()
    with written_aside(tmp_path / "out", overwrite=True, may_replace=lambda path: True) as aside:
        assert not any((tmp_path / name).exists() for name in own)
        aside.mkdir()
        (aside / "new").touch()
    assert {path.name for path in tmp_path.iterdir()} == {"out", *others} and (tmp_path / "out" / "new").exists()
