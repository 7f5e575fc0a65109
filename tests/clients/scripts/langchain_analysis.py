"""langchain-daytona-data-analysis: snippets, and files for them."""

import io

from langchain_daytona_data_analysis import DaytonaDataAnalysisTool

seen = []
tool = DaytonaDataAnalysisTool(on_result=seen.append)
try:
    assert tool.invoke({"data_analysis_python_code": "6 * 7"}).stdout == "42\n"
    assert "ZeroDivisionError" in tool.invoke({"data_analysis_python_code": "1 / 0"})
    file = io.BytesIO(b"a,b\n1,2\n")
    file.name = "/somewhere/data.csv"
    uploaded = tool.upload_file(file, "two columns")
    assert tool.invoke({"data_analysis_python_code": "open('data.csv').read()"}).stdout == "a,b\n1,2\n\n"
    assert tool.download_file(uploaded.remote_path) == b"a,b\n1,2\n"
    tool.remove_uploaded_file(uploaded)
    assert "FileNotFoundError" in tool.invoke({"data_analysis_python_code": "open('data.csv')"})
    assert tool.get_sandbox().state == "started"
    assert len(seen) == 2
finally:
    tool.close()
print("came to its end")
