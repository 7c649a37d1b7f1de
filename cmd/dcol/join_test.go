package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

// An invitation need not be an argument, which other users see.
func TestInvitation(t *testing.T) {
	line := enrol.Line{
		Collective: "friends", Coordinators: []enrol.Endpoint{{Name: "hub", Address: "192.0.2.1:45672"}},
		Secret: enrol.NewSecret(), Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	}
	text := line.String()
	file := filepath.Join(t.TempDir(), "line")
	if err := os.WriteFile(file, []byte("\n"+text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ arg, stdin string }{
		"argument":                       {text, ""},
		"standard input":                 {"-", text + "\n"},
		"without an end of line":         {"-", text},
		"broken by a mail program":       {"-", "\n  " + text[:60] + "\n  " + text[60:] + "\n\n"},
		"more follows than can be read":  {"-", text + "\n" + strings.Repeat("x", 1<<20)},
		"file":                           {file, ""},
		"argument with what is about it": {" " + text + "\n", ""},
	} {
		got, err := invitation(test.arg, strings.NewReader(test.stdin))
		if err != nil || got.String() != text {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, test := range map[string]struct{ arg, stdin, says string }{
		"nothing on standard input": {"-", "", "it does not begin with"},
		"half on standard input":    {"-", text[:80] + "\n\n", "not a complete invitation"},
		"half as an argument":       {text[:80], "", "not a complete invitation"},
		"no file":                   {"nonsense", "", "or name a file that contains the invitation"},
		"another file":              {"/dev/null", "", "not a complete invitation"},
		"endless file":              {"/dev/zero", "", "not a complete invitation"},
		"folder":                    {t.TempDir(), "", "read the invitation"},
	} {
		_, err := invitation(test.arg, strings.NewReader(test.stdin))
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
