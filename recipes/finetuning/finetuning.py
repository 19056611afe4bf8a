"""The recipe under its old path, so that old commands keep working: see recipes/finetuning.py."""

from ftrecipes.commands.finetune import main

if __name__ == "__main__":
    main()
