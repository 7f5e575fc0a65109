"""Defences of the window, each with the change to the sources that switches it off, and the probes that must notice."""

from support.knock_outs import Edit, KnockOut

JUDGE = "network/judge.py"
HEADS = "network/heads.py"
HELLO = "network/hello.py"
SNIFF = "network/sniff.py"
PASSAGE = "network/passage.py"
LOOKUPS = "network/lookups.py"
CONNECTIONS = "network/connections.py"
CONFINE = "network/confine.py"
REDIRECT = "engine/redirect.py"
ENDING = "network/ending.py"
SUBSTITUTION = "network/substitution.py"

_ASKED_AGAIN = """self._choose(found, target.port)
        self._resolver._remembered.clear()
        return Permit(target, target.port, tuple(await self._resolver.look_up(target.host)))"""

WINDOW_KNOCK_OUTS = (
    KnockOut(
        "the list of names",
        (Edit(JUDGE, 'if self._mode == "open" or self._find_alias', "if True or self._find_alias"),),
        ("reach-what-is-not-listed", "ask-for-names-that-look-alike", "use-the-neighbours-window"),
    ),
    KnockOut(
        "the list of addresses",
        (Edit(JUDGE, 'raise RefusedError("private")\n        if self._mode != "open":', "return\n        if False:"),),
        ("reach-what-is-not-listed", "spell-addresses-in-odd-ways"),
    ),
    KnockOut(
        "an empty list that denies all",
        (Edit(JUDGE, 'if self._mode == "open" or', 'if self._mode == "open" or not self._rules or'),),
        ("reach-anything-with-an-empty-list",),
    ),
    KnockOut(
        "names that are compared whole",
        (Edit("network/rules.py", "else name == self.host", "else name.startswith(self.host)"),),
        ("ask-for-names-that-look-alike",),
    ),
    KnockOut(
        "wildcards for what is below",
        (Edit("network/rules.py", "name.endswith(self.host[1:])", "name.endswith(self.host[2:])"),),
        ("ask-for-names-that-look-alike",),
    ),
    KnockOut(
        "the judgement of addresses",
        (Edit(JUDGE, "is_public(address) and not", "not"),),
        ("spell-addresses-in-odd-ways", "reach-inner-addresses-with-an-open-window", "follow-a-redirect-to-metadata"),
        says="169.254",
    ),
    KnockOut(
        "IPv4 in IPv6, judged as IPv4",
        (Edit("network/rules.py", "    if isinstance(address, IPv4Address):\n", "    if True:\n"),),
        ("reach-inner-addresses-with-an-open-window",),
        says="64:ff9b",
    ),
    KnockOut(
        "the machine's own addresses",
        (Edit(JUDGE, "is_public(address) and not self._is_own(address)", "is_public(address)"),),
        ("spell-addresses-in-odd-ways", "reach-inner-addresses-with-an-open-window"),
        says="2a11:ffff::1",
    ),
    KnockOut(
        "local names, which are not looked up",
        (Edit(JUDGE, 'if "." in name and not name.endswith(_LOCAL_SUFFIXES):', "if True:"),),
        ("reach-inner-addresses-with-an-open-window",),
        says="the host was asked for names",
    ),
    KnockOut(
        "the address that was judged",
        (
            Edit(
                JUDGE,
                "return Permit(target, target.port, self._choose(found, target.port))",
                _ASKED_AGAIN,
            ),
        ),
        ("rebind-a-permitted-name",),
    ),
    KnockOut(
        "lookups of permitted names alone",
        (
            Edit(LOOKUPS, "question.name is None or not self._judge.permits_name(question.name)", "not question.name"),
            Edit(JUDGE, "if not self.permits_name(name):\n", "if False:\n"),
        ),
        ("tunnel-by-names-that-are-not-permitted",),
        says="the host was asked for names",
    ),
    KnockOut(
        "lookups without pointers",
        (
            Edit(
                "network/dns.py",
                "        if length > 63 or position + length > len(data):\n            return None\n",
                "        if length > 63:\n            position = data[position]\n            continue\n",
            ),
        ),
        ("send-broken-packets-to-the-resolver",),
        says="nothing is reached any more",
    ),
    KnockOut(
        "the name in TLS",
        (Edit(PASSAGE, "if asked is None or not (asked == name or", "if False and not (asked == name or"),),
        ("connect-to-one-name-and-say-another-in-tls",),
        says="evil.test",
    ),
    KnockOut(
        "the second name in TLS",
        (Edit(HELLO, "server_name != self._hello.server_name:", "server_name is None:"),),
        ("connect-to-one-name-and-say-another-in-tls",),
        says="evil.test",
    ),
    KnockOut(
        "TLS behind a warning",
        (Edit(HELLO, "(_CHANGE_CIPHER, _ALERT, HANDSHAKE, APPLICATION_DATA)", "(HANDSHAKE,)"),),
        ("connect-to-one-name-and-say-another-in-tls",),
        says="evil.test",
    ),
    KnockOut(
        "TLS of every version",
        (Edit(HELLO, "if data[1] > _LAST_VERSION", "if data[1] != 3"),),
        ("connect-to-one-name-and-say-another-in-tls",),
        says="evil.test",
    ),
    KnockOut(
        "the host of each request",
        (Edit("network/checking.py", "(asked.host, asked.port) != (target.host, target.port):", "not asked.host:"),),
        ("name-another-host-in-a-request",),
        says="evil.test",
    ),
    KnockOut(
        "requests at every port",
        (Edit(SNIFF, 'return "http" if _HTTP_LINE.search(line)', 'return "http" if False'),),
        ("name-another-host-in-a-request", "smuggle-a-request-behind-another"),
    ),
    KnockOut(
        "requests with any bytes in their address",
        (Edit(SNIFF, "if _REQUEST.fullmatch(line) is None:", 'if re.search(rb"[\\x00-\\x1f\\x7f-\\xff]", line):'),),
        ("name-another-host-in-a-request",),
        says="evil.test",
    ),
    KnockOut(
        "upgrades to protocols that can be followed",
        (Edit("network/exchange.py", '.split(",")  # the server', '.split("\\n")  # the server'),),
        ("name-another-host-in-a-request",),
        says="H2C",
    ),
    KnockOut(
        "one length for each request",
        (Edit(HEADS, "if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):", "if False:"),),
        ("smuggle-a-request-behind-another",),
        says="/smuggled",
    ),
    KnockOut(
        "lines that all servers end in one place",
        (
            Edit(HEADS, "[\\x21-\\x7e]{{1,32768}}", "[^ ]{{1,32768}}"),
            Edit(HEADS, '[\\x20-\\x7e]*"', '[^ ]*"'),
            Edit(HEADS, 'for character in "\\r\\n\\0"', 'for character in ""'),
        ),
        ("inject-lines-through-the-proxy",),
        says="X-Injected",
    ),
    KnockOut(
        "SOCKS for connections alone",
        (Edit("network/explicit.py", "if command != _CONNECT:", "if False:"),),
        ("send-datagrams-through-the-window",),
        says="relays datagrams",
    ),
    KnockOut(
        "the end of what a new policy does not permit",
        (Edit(CONNECTIONS, "if not self._may_go_on(connection):", "if False:"),),
        ("keep-connections-whose-permission-was-withdrawn",),
    ),
    KnockOut(
        "the rate of attempts",
        (Edit("network/limits.py", "return self._attempts.take(weight)", "return True"),),
        ("attempt-ten-thousand-times",),
    ),
    KnockOut(
        "the limit of connections",
        (Edit(CONNECTIONS, "elif len(self._open) >= self._meter.most_connections:", "elif False:"),),
        ("hold-more-connections-than-permitted",),
    ),
    KnockOut(
        "the limit of bytes",
        (Edit("network/limits.py", "self._total is not None and self.transferred >= self._total", "False"),),
        ("transfer-more-than-permitted",),
    ),
    KnockOut(
        "waiting for slow readers",
        (
            Edit(
                "network/pump.py",
                "        self._rest = memoryview(bytes(_view[sent:size]))  # a copy: the buffer is everybody's\n",
                "        self._kept = getattr(self, '_kept', b'') + bytes(_view[sent:size])\n"
                "        if len(self._kept) < 6 << 20:\n            return True\n"
                "        self._rest = memoryview(self._kept)\n",
            ),
        ),
        ("read-slowly-from-many-connections",),
        says="a gate takes",
    ),
    KnockOut(
        "a gate without capabilities",
        (Edit(CONFINE, "if libc.capset(", "if False and libc.capset("),),
        ("find-the-gates-process",),
        modes=("root",),
        says="capabilities",
    ),
    KnockOut(
        "a gate that owns nothing",
        (Edit(CONFINE, "    if uid is not None:\n", "    if False:\n"),),
        ("find-the-gates-process",),
        modes=("root",),
        says="runs as root",
    ),
    KnockOut(
        "a gate that gains nothing",
        (Edit(CONFINE, "    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)\n", ""),),
        ("find-the-gates-process",),
        says="NoNewPrivs",
    ),
    KnockOut(
        "addresses that are not shared",
        (
            Edit(
                "engine/perform.py",
                '    stage.window["dns"].bind(',
                '    stage.window["dns"].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n'
                '    stage.window["dns"].bind(',
            ),
            # Or else it is the port that an ordinary user may not have.
            Edit("engine/plan.py", "BUILD_CAPABILITIES if uid == 0 else 0", "BUILD_CAPABILITIES\n    uid = gid = 0"),
        ),
        ("take-over-the-resolver-and-the-listener",),
        modes=("root",),
        says="resolver 127.77.0.1",
    ),
    KnockOut(
        "addresses that are not shared with one's own user",
        (
            Edit(
                REDIRECT,
                "        _bind(listener, address, port)\n",
                "        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
                "        _bind(listener, address, port)\n",
            ),
        ),
        ("take-over-the-resolver-and-the-listener",),
        modes=("user",),
        says="listener 127.77.0.1",
    ),
    KnockOut(
        "no more than the window's own sockets",
        (
            Edit(
                REDIRECT,
                "def install(*listeners: socket.socket) -> None:\n",
                "def install(*listeners: socket.socket) -> None:\n"
                "    global forgotten\n    forgotten = socket.create_server(('127.0.0.1', 1999))\n",
            ),
        ),
        ("look-for-other-doors-of-the-gate",),
    ),
    KnockOut(
        "no capability over the window's network",
        (
            Edit("engine/plan.py", "in (0, 1, 3, 4, 5, 6, 7, 10))", "in (0, 1, 3, 4, 5, 6, 7, 10, 12))"),
            Edit("engine/plan.py", "BUILD_CAPABILITIES if uid == 0 else 0", "BUILD_CAPABILITIES\n    uid = gid = 0"),
        ),
        ("change-what-leads-to-the-gate",),
        modes=("root",),
    ),
    KnockOut(
        "placeholders instead of values",
        (Edit("secret.py", "{each.name: each.placeholder for", "{each.name: str(each.value) for"),),
        ("read-a-secret-inside",),
        says="the value is inside",
    ),
    KnockOut(
        "the named header alone",
        (Edit(SUBSTITUTION, "if each.header.lower() == name or", "if True or"),),
        ("put-a-placeholder-in-another-header",),
    ),
    KnockOut(
        "secrets by TLS alone",
        (Edit(SUBSTITUTION, "if changed and not secure:", "if False:"),),
        ("send-a-placeholder-to-another-host",),
        says="secret.test:80",
    ),
    KnockOut(
        "the certificate of a secret's host",
        (
            Edit(
                ENDING,
                "    return context\n",
                "    context.check_hostname = False\n    context.verify_mode = ssl.CERT_NONE\n    return context\n",
            ),
        ),
        ("send-a-placeholder-to-another-host",),
        says="else.test:443",
    ),
    KnockOut(
        "one length and one host for each request with a secret",
        (
            Edit(HEADS, "    _check_framing(head)\n", ""),
            Edit(PASSAGE, "strict=not self._is_free or wanted or secure", "strict=False"),
        ),
        ("inject-lines-through-a-secret",),
    ),
    KnockOut(
        "an authority for the hosts of secrets alone",
        (
            Edit(ENDING, "return self._substitution.concerns(name, port)", "return True"),
            Edit("network/authority.py", "        .add_extension(constraints, critical=True)\n", ""),
        ),
        ("use-the-authority-of-a-neighbour",),
        says="it signs for others",
    ),
)
