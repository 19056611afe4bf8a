"""`torchrun recipes/finetuning.py --flags`: the recipe itself is src/ftrecipes/finetuning.py."""

from ftrecipes.commands.finetune import main

if __name__ == "__main__":
    main()
