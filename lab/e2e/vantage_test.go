package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/campaign"
)

// A member that allows it traces for another over their session; its results are labelled with its name.
func TestVantagePoint(t *testing.T) {
	w := standard(newWorld(t))
	outside := netip.MustParseAddr("9.9.9.9") // where bob's operator says that others see him
	w.configure(bob, waypointConfig(labAllowed)+fmt.Sprintf("[collective]\naddresses = [%q]\n[trace]\nvantage_point = true\n", outside))
	w.startBoth()
	dir := t.TempDir()
	list, out := filepath.Join(dir, "list"), filepath.Join(dir, "results.jsonl")
	// Bob traces the server, but neither himself nor his router.
	if err := os.WriteFile(list, []byte(fmt.Sprintf("%v\n%v\n%v\n", w.addr4(server), w.addr4(bob), outside)), 0o644); err != nil {
		t.Fatal(err)
	}
	said := w.dcol(alice, "trace", "campaign", list, "--contact", "a test, root@example.org", "--out", out, "--via", bob)
	if !strings.Contains(said, "6 destinations") {
		t.Errorf("it says %s", said)
	}
	file, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	found := map[string]string{}
	if _, err := campaign.Read(file, func(r *campaign.Record) {
		if r.Trace != nil {
			found[r.From+" to "+r.Name] = r.Trace.Source
		} else {
			found[r.From+" to "+r.Name] = r.Skipped + r.Error
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][2]string{
		{alice + " to " + w.addr4(server).String(), w.addr4(alice).String()}, {bob + " to " + w.addr4(server).String(), w.addr4(bob).String()},
		{bob + " to " + w.addr4(bob).String(), "does not probe"},
		{bob + " to " + outside.String(), "at which others see the waypoint"},
	} {
		if got := found[want[0]]; !strings.Contains(got, want[1]) {
			t.Errorf("%s: %q, want %q", want[0], got, want[1])
		}
	}
	w.fails(alice, []string{"trace", "campaign", list, "--contact", "a test, root@example.org", "--out", out, "--via", mallory}, "the address of that member is not known")
}
