from pipeline.stats.runs import Setting, describe, varying_fields


def test_only_what_varies_is_named() -> None:
    settings = [Setting("resnet18", 32, rate, 5e-4) for rate in (0.05, 0.1)] + [Setting("resnet18", 64, 0.05, 5e-4)]
    assert varying_fields(settings) == ("learning_rate",)
    assert describe(settings[1], varying_fields(settings)) == "lr 0.1"
    assert describe(settings[1], ("model", "weight_decay")) == "resnet18, wd 0.0005"
    assert describe(settings[0], varying_fields(settings[:1])) == ""
