"""What may stand in the output folder when a run starts."""

from pathlib import Path

from ftrecipes.config.parse import parse_words
from tests.config.faults import faults_of


def test_earlier_result_may_be_replaced_and_an_empty_one_is_none(needed):
    Path("out").mkdir()
    Path("out/run.json").write_text('{"versions": {"ftrecipes": "0"}}')
    Path("out/run.yaml").write_text("lr: 1")
    Path("out/metrics.jsonl").touch()  # a run that failed before its first step
    parse_words(needed)
    Path("out/model.safetensors").write_text("x")
    assert parse_words([*needed, "--overwrite_output_dir"]).config.train.overwrite_output_dir


def test_a_folder_with_files_of_somebody_else_is_not_ours_to_write_into(needed):
    Path("out").mkdir()
    Path("out/README.md").write_text("mine")
    Path("out/run.yaml").write_text("lr: 1")
    Path("out/notes.txt").write_text("mine")
    (fault,) = faults_of(lambda: parse_words(needed))
    assert "holds files that the run would replace" in fault
    assert "README.md, run.yaml" in fault
    assert "notes.txt" not in fault
    parse_words([*needed, "--overwrite_output_dir"])


def test_a_name_that_no_folder_can_have_and_a_link_that_leads_nowhere(needed):
    Path("link").symlink_to("nowhere")
    for name, words in (("x" * 300, "too long"), ("link", "leads nowhere"), ("link/out", "link")):
        (fault,) = faults_of(lambda name=name: parse_words([*needed[:-1], name]))
        assert words in fault
