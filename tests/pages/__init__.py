"""Every HTML page of the project: valid, accessible, inert, small; and a tool that draws them.

What is not installed is skipped, and says so. To run all of it, as .ci/run does:
    python -m pip install -e '.[course,test,pages]'
    apt-get install chromium default-jre-headless
    npm install --ignore-scripts --prefix FOLDER vnu-jar
    VNU_JAR=FOLDER/node_modules/vnu-jar/build/dist/vnu.jar python -m pytest -n auto tests/pages
To look at the pages: python -m tests.pages.pictures FOLDER
"""
