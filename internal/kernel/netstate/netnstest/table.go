package netnstest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asBefore writes what nft 1.1 lists as nft 1.0 does.
var asBefore = strings.NewReplacer(
	"tcp flags & (fin | syn | rst | ack) == syn | ack", "tcp flags syn,ack / fin,syn,rst,ack",
	"tcp flags & (fin | syn | rst | ack) == syn", "tcp flags syn / fin,syn,rst,ack",
	"subtype mp-capable", "subtype 0",
	"subtype mp-fastclose", "subtype 7",
)

// Table returns a table of the family inet as nft 1.0 lists it, without counters.
func (n *NS) Table(t testing.TB, name string) string {
	t.Helper()
	return asBefore.Replace(n.Output(t, "nft", "--stateless", "list", "table", "inet", name))
}

// CompareTable compares a listed table with a golden file, so that a person can read it. With update, it writes the file.
func CompareTable(t testing.TB, golden, got string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the table changed (-%s +now; if that is right, run with -update):\n%s", golden, diff)
	}
}
