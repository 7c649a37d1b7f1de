package enrol

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective"
)

func testLine() Line {
	l := Line{
		Collective: "test collective", Secret: NewSecret(), Expires: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), Name: "laptop",
		Coordinators: []Endpoint{{"hub", "192.0.2.1:45672"}, {"spare", "[2001:db8::1]:45672"}},
	}
	l.Root = HashRoot([]byte("a root"))
	return l
}

func TestLineComesBack(t *testing.T) {
	l := testLine()
	text := l.String()
	if len(text) > 250 || strings.ContainsAny(text, " \n") {
		t.Errorf("%d characters: %s", len(text), text)
	}
	for _, as := range []string{text, "  " + text + "\n", text[:80] + "\r\n   " + text[80:]} {
		got, err := ParseLine(as)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != text || got.Name != l.Name || !got.Expires.Equal(l.Expires) || got.Secret != l.Secret || got.Coordinators[1] != l.Coordinators[1] {
			t.Errorf("got %+v, want %+v", got, l)
		}
	}
}

func TestLineTellsOfMistakes(t *testing.T) {
	text := testLine().String()
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	wrong := []string{"", "dcol1-", "dcol2-" + text[6:], text + "A", text + "AAAA", strings.ToLower(text), text[6:], strings.Repeat(text, 40)}
	for i := range text {
		wrong = append(wrong, text[:i]) // cut off
		other := alphabet[(strings.IndexByte(alphabet, text[i])+1)%len(alphabet)]
		wrong = append(wrong, text[:i]+string(other)+text[i+1:]) // mistyped
		if i > 0 && text[i] != text[i-1] {
			wrong = append(wrong, text[:i-1]+text[i:i+1]+text[i-1:i]+text[i+1:]) // two exchanged
		}
	}
	for _, w := range wrong {
		if l, err := ParseLine(w); err == nil {
			t.Errorf("taken as %+v: %s", l, w)
		} else if !errors.Is(err, errLine) || !strings.Contains(err.Error(), lineFix) {
			t.Errorf("%v does not say what to do", err)
		}
	}
}

// A line with a good checksum may still make no sense.
func TestLineMadeToMislead(t *testing.T) {
	for name, change := range map[string]func(*Line){
		"no collective":    func(l *Line) { l.Collective = "" },
		"steers terminals": func(l *Line) { l.Collective = "friends\x1b[2J" },
		"bad name":         func(l *Line) { l.Name = "../etc" },
		"no coordinator":   func(l *Line) { l.Coordinators = nil },
		"no port":          func(l *Line) { l.Coordinators[0].Address = "192.0.2.1" },
		"port 0":           func(l *Line) { l.Coordinators[0].Address = "192.0.2.1:0" },
		"a path":           func(l *Line) { l.Coordinators[0].Address = "host/x?:1" },
		"a path's name":    func(l *Line) { l.Collective = "../../etc" },
		"no address":       func(l *Line) { l.Coordinators[0].Address = "300.1.1.1:1" },
		"another's words":  func(l *Line) { l.Coordinators[0].Name = "a b" },
		"before 1970":      func(l *Line) { l.Expires = time.Unix(-1, 0) },
		"far future":       func(l *Line) { l.Expires = time.Unix(1<<40, 0) },
	} {
		l := testLine()
		change(&l)
		if got, err := ParseLine(l.String()); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}

func TestLinesOfAllKinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?`).Filter(func(s string) bool { return collective.CheckName(s) == nil })
		l := Line{
			Collective: rapid.StringN(1, 30, 128).Filter(func(s string) bool { return collective.CheckCollective(s) == nil }).Draw(t, "collective"),
			Root:       HashRoot([]byte(rapid.String().Draw(t, "root"))),
			Secret:     Secret(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret")),
			Expires:    time.Unix(rapid.Int64Range(0, 1<<37).Draw(t, "expires"), 0).UTC(),
			Coordinators: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Endpoint {
				return Endpoint{name.Draw(t, "server"), name.Draw(t, "host") + ".example:45672"}
			}), 1, maxCoordinators).Draw(t, "coordinators"),
		}
		got, err := ParseLine(l.String())
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != l.String() || got.Collective != l.Collective {
			t.Fatalf("%+v came back as %+v", l, got)
		}
	})
}

func FuzzParseLine(f *testing.F) {
	f.Add(testLine().String())
	l := testLine()
	l.Name, l.Coordinators = "", l.Coordinators[:1]
	f.Add(l.String())
	f.Add("dcol1-AAAAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLine(text)
		if err != nil {
			return
		}
		if err := l.Check(); err != nil {
			t.Fatalf("taken, though %v", err)
		}
		if l.String() != strings.Join(strings.Fields(text), "") {
			t.Fatalf("there are two ways to write %+v", l)
		}
	})
}

// FuzzFields parses invitations with a valid checksum but arbitrary content.
func FuzzFields(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 59))
	f.Add(make([]byte, 300))
	f.Fuzz(func(t *testing.T, fields []byte) {
		l, err := parseFields(fields)
		if err == nil && l.Check() == nil {
			if again, err := ParseLine(l.String()); err != nil || again.String() != l.String() {
				t.Fatalf("%+v came back as %+v: %v", l, again, err)
			}
		}
	})
}

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"hub@192.0.2.1:1":      {"hub", "192.0.2.1:1"},
		"hub@hub.example":      {"hub", "hub.example:45672"},
		"hub@[2001:db8::1]":    {"hub", "[2001:db8::1]:45672"},
		"hub@2001:db8::1":      {"hub", "[2001:db8::1]:45672"},
		"hub@[2001:db8::1]:80": {"hub", "[2001:db8::1]:80"},
	} {
		var got Endpoint
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "hub", "@x", "hub@", "hub@:1", "Hub@x:1", "hub@x:99999", "hub@x y:1", "hub@x:0", "hub@300.1.1.1", "hub@1.2.3", "hub@8", "hub@[::1::2]:1"} {
		if e, err := ParseEndpoint(text); err == nil {
			t.Errorf("%q taken as %v", text, e)
		}
	}
}

func TestHosts(t *testing.T) {
	for _, host := range []string{
		"192.0.2.7", "2001:db8::7", "fe80::1%eth0", "hub", "hub.example", "hub.example.", "a_b.example", "4you.example", "2.example", "xn--bcher-kva.example",
		strings.Repeat("a.", 124) + "a",
	} {
		if err := CheckHost(host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for host, want := range map[string]string{
		"":                              "the host is missing",
		"300.1.1.1":                     `"300.1.1.1" is not an IPv4 address, which is four numbers from 0 to 255`,
		"192.0.2":                       "four numbers",
		"1234":                          "four numbers",
		"2001:db8:::7":                  "not an IPv6 address",
		"192.0.2.7:45672":               "not an IPv6 address",
		"fe80::1%\x1b[2J":               "not an IPv6 address",
		"../../etc":                     "not a host name",
		"two words":                     "not a host name",
		"-hub":                          "not a host name",
		"hub..example":                  "not a host name",
		"\x1b[2J":                       "not a host name",
		strings.Repeat("a", 64):         "not a host name",
		strings.Repeat("a.", 125) + "a": "has 251 characters, and may have 249",
	} {
		if err := CheckHost(host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", host, err, want)
		}
	}
}

// An endpoint that passes its check can be carried in a line.
func TestLongestEndpoint(t *testing.T) {
	l := testLine()
	l.Coordinators = []Endpoint{{Name: "hub", Address: strings.Repeat("a.", 124) + "a:65535"}}
	if got, err := ParseLine(l.String()); err != nil || got.Coordinators[0] != l.Coordinators[0] {
		t.Errorf("%v, %v", got.Coordinators, err)
	}
}
