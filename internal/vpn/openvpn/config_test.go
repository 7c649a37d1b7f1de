package openvpn

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

var someFiles = Files{
	Certificate: "/etc/dcol/bob.crt", Key: "/etc/dcol/bob.key", CA: "/etc/dcol/ca.crt", CRL: "/etc/dcol/ca.crl",
}

func TestConfigurations(t *testing.T) {
	without := someFiles
	without.CRL = ""
	client := ClientConfig{Interface: "dcolov0", ServerName: "bob", Files: without, MTU: 1464}
	for name, list := range map[string][]directive{
		"server": serverDirectives(ServerConfig{Interface: "dcolov", Port: 1194, Files: someFiles, MTU: 1464}, rundir{"/run/dcol/openvpn"}, "udp6"),
		"client": clientDirectives(client, rundir{"/run/dcol/openvpn-bob"}, netip.MustParseAddrPort("192.0.2.1:1194")),
	} {
		got, err := render(list)
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name+".conf")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", name, diff)
		}
	}
}

func TestIPv6Remote(t *testing.T) {
	text, err := render(clientDirectives(ClientConfig{}, rundir{"/run"}, netip.MustParseAddrPort("[2001:db8::1]:1194")))
	if err != nil {
		t.Fatal(err)
	}
	if want := `remote "2001:db8::1" "1194" "udp6"`; !strings.Contains(text, want+"\n") {
		t.Errorf("no line %q in:\n%s", want, text)
	}
}

func TestMTU(t *testing.T) {
	for remote, want := range map[string]int{"192.0.2.1": 1464, "::ffff:192.0.2.1": 1464, "2001:db8::1": 1444} {
		if got := MTU(1500, netip.MustParseAddr(remote)); got != want {
			t.Errorf("to %s: %d, want %d", remote, got, want)
		}
	}
}

// A path is always a file's, never one of OpenVPN's words.
func TestInline(t *testing.T) {
	f, err := Files{Certificate: "[inline]", Key: "key", CA: "/ca"}.absolute()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := Files{Certificate: filepath.Join(here, "[inline]"), Key: filepath.Join(here, "key"), CA: "/ca"}
	if f != want {
		t.Errorf("got %+v, want %+v", f, want)
	}
}

// unquote reads a line as OpenVPN's parse_line does (options_util.c and options.c): words with
// blanks between them, quotes around them, backslashes within.
func unquote(line string) (words []string, ok bool) {
	var word []byte
	var quote byte
	in, escaped := false, false
	for i := range len(line) {
		c := line[i]
		switch {
		case escaped:
			word = append(word, c)
			escaped = false
		case c == '\\' && quote != '\'':
			in, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			in, quote = true, c
		case quote == 0 && (c == ' ' || c == '\t'):
			if in {
				words, word, in = append(words, string(word)), nil, false
			}
		case quote == 0 && !in && (c == '#' || c == ';'):
			return words, true
		default:
			in, word = true, append(word, c)
		}
	}
	if in {
		words = append(words, string(word))
	}
	return words, quote == 0 && !escaped
}

func FuzzQuote(f *testing.F) {
	for _, word := range []string{"", "/etc/dcol/bob.crt", `/a "b" \c 'd'`, `\`, `"`, "#x", ";", " ", "ü", "a\nb", "\x00", "\x7f", "\xff"} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		line, err := render([]directive{{"ca", word, "after"}})
		if err != nil {
			if !strings.ContainsFunc(word, func(r rune) bool { return r < ' ' || r == 0x7f }) && len(word) < 100 {
				t.Fatalf("%q was refused: %v", word, err)
			}
			return
		}
		line, one := strings.CutSuffix(line, "\n")
		words, ok := unquote(line)
		if !one || strings.Contains(line, "\n") || !ok || len(words) != 3 || words[1] != word || words[2] != "after" {
			t.Fatalf("%q became %q, which reads as %q", word, line, words)
		}
	})
}

func TestQuoteRefuses(t *testing.T) {
	for _, word := range []string{"a\nb", "a\rb", "a\x00b", "a\tb", strings.Repeat("x", 260)} {
		if text, err := render([]directive{{"ca", word}}); err == nil {
			t.Errorf("%q was written as %q", word, text)
		}
	}
}
