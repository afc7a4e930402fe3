"""How a folder of weights becomes a function without a line of code: `samovar deploy --model FOLDER`.

    folder.py    what is in the folder, and which of its files a model needs
    tasks.py     what can be done with a model, and by which engine
    choosing.py  which of it a folder is made for
    project.py   the app.py that a person would have written, and the project around it

From there on it is a deploy like any other. Nothing here knows torch, transformers, HTTP or the command line.
"""
