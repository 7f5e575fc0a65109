"""A language of your own: its names, and how a file of it is run."""

from corral import Language, Runtime, Sandbox, UnknownLanguageError, register_language

with Sandbox() as box:
    try:
        box.run_code("BEGIN { print 6 * 7 }", "awk")
    except UnknownLanguageError as error:
        print("before:", error.message)

    awk = Runtime("awk", ("awk", "-f", "{file}"), extension="awk")
    register_language(Language("awk", aliases=("gawk", "mawk"), runtimes=(awk,), hint="install awk"))

    print("after: ", box.run_code("BEGIN { print 6 * 7 }", "awk").stdout.strip())
    wrong = box.run_code("BEGIN {\n  print 6 *\n}\n", "gawk")
    print("wrong: ", wrong.exit_code, wrong.stderr.splitlines()[0].partition("snippet")[2])
