package client

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// remembering is a memory file in a new folder, and what is logged of it.
func remembering(t *testing.T) (*stateFile, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	f := newMemoryFile(t.TempDir(), slog.New(slog.NewTextHandler(&logged, nil)))
	return &f, &logged
}

var measured = path.Memory{
	Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	Trails: []path.Trail{
		{Waypoint: "bob", Network: netip.MustParsePrefix("203.0.113.0/24"), At: time.Unix(1e9, 5).UTC(), Trip: 20500 * time.Microsecond, Loss: 0.05, Packets: 300, Shunned: time.Unix(1e9+60, 0).UTC(), Times: 1,
			Goodput: 17.5e6, GoodputAt: time.Unix(1e9, 0).UTC(), Kind: measure.Bulk},
		{Network: netip.MustParsePrefix("2001:db8:80::/48"), At: time.Unix(1e9, 0).UTC(), Trip: time.Millisecond},
	},
	Verdicts: []claim.Verdict{
		{Member: "carol", Waypoint: "bob", Agreed: true, At: time.Unix(1e9, 0).UTC()},
		{Member: "mallory", Waypoint: "bob", At: time.Unix(1e9, 7).UTC()},
		{Member: "mallory", Waypoint: "carol", At: time.Unix(1e9, 0).UTC()},
	},
}

func TestMemoryIsKept(t *testing.T) {
	f, logged := remembering(t)
	if got := readMemory(f); len(got.Trails) > 0 || logged.Len() > 0 {
		t.Errorf("without a file: %+v, %s", got, logged)
	}
	if err := f.write(memoryOf(measured)); err != nil {
		t.Fatal(err)
	}
	same := cmp.Options{cmpopts.SortSlices(func(a, b claim.Verdict) bool { return a.Member+a.Waypoint < b.Member+b.Waypoint }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
	if diff := cmp.Diff(measured, readMemory(f), same); diff != "" || logged.Len() > 0 {
		t.Errorf("%s%s", diff, logged)
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: it tells which servers a member visits", info.Mode(), err)
	}
}

// A damaged file is set aside with a word in the log, and the client begins anew.
func TestDamagedMemoryIsSetAside(t *testing.T) {
	f, _ := remembering(t)
	if err := f.write(memoryOf(measured)); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":           nil,
		"cut off":         whole[:len(whole)/2],
		"zeros":           make([]byte, len(whole)),
		"another version": bytes.Replace(whole, []byte(`"version": 3`), []byte(`"version": 4`), 1),
		"no version":      bytes.Replace(whole, []byte(`"version": 3,`), nil, 1),
		"unknown field":   bytes.Replace(whole, []byte(`"loss"`), []byte(`"lost"`), 1),
		"no network":      bytes.Replace(whole, []byte("203.0.113.0/24"), []byte("203.0.113.0/33"), 1),
		"no verdict":      bytes.Replace(whole, []byte(`"agreed": true`), []byte(`"agreed": 1`), 1),
		"no time":         bytes.Replace(whole, []byte(`"at": "2`), []byte(`"at": "x`), 1),
		"far too long":    bytes.Repeat([]byte(" "), longestState+1),
	} {
		f, logged := remembering(t)
		if err := os.WriteFile(f.path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := readMemory(f); len(got.Trails)+len(got.Addrs)+len(got.Verdicts) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
		kept, err := os.ReadFile(f.path + ".damaged")
		if err != nil || !bytes.Equal(kept, data) {
			t.Errorf("%s: what was set aside: %v", name, err)
		}
		if !strings.Contains(logged.String(), "damaged") || !strings.Contains(logged.String(), filepath.Base(f.path)+".damaged") {
			t.Errorf("%s: logged %s", name, logged)
		}
		if _, err := os.Stat(f.path); err == nil {
			t.Errorf("%s: it is still there", name)
		}
	}
}

// A file with as much as a path manager keeps, and the longest names, is read again.
func TestFullMemoryIsRead(t *testing.T) {
	const trails, members, each = 4096, 256, 32 // as internal/path and internal/path/claim bound them
	name := func(n int) string { return fmt.Sprintf("%063d", n) }
	full := path.Memory{Addrs: measured.Addrs}
	for i := range trails {
		trail := measured.Trails[0]
		trail.Waypoint, trail.Trip = name(i), 123456789
		full.Trails = append(full.Trails, trail)
	}
	for i := range members * each {
		full.Verdicts = append(full.Verdicts, claim.Verdict{Member: name(i / each), Waypoint: name(1000 + i%each), At: time.Unix(1e9, 1).UTC()})
	}
	f, logged := remembering(t)
	if err := f.write(memoryOf(full)); err != nil {
		t.Fatal(err)
	}
	if got := readMemory(f); len(got.Trails) != trails || len(got.Verdicts) != members*each || logged.Len() > 0 {
		t.Errorf("%d measurements, %d verdicts, %s", len(got.Trails), len(got.Verdicts), logged)
	}
}

// The file of an earlier version has losses that were certain, and nothing of bulk traffic.
func TestMemoryOfVersion1(t *testing.T) {
	f, logged := remembering(t)
	old := `{"version": 1, "addresses": ["192.0.2.1"], "measured": [{"waypoint": "bob", "network": "203.0.113.0/24",
		"at": "2026-01-01T00:00:00Z", "trip_ms": 20.5, "loss": 0.05, "avoided_until": "2026-01-01T00:01:00Z", "times": 1}]}`
	if err := os.WriteFile(f.path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	got := readMemory(f)
	if len(got.Trails) != 1 || got.Trails[0].Loss != 0.05 || got.Trails[0].Packets != path.EnoughPackets || got.Trails[0].Goodput != 0 || logged.Len() > 0 {
		t.Errorf("%+v, %s", got, logged)
	}
}

// dcol down leaves neither the file nor one that was set aside.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	if err := Forget(dir); err != nil {
		t.Errorf("nothing to forget: %v", err)
	}
	if err := os.WriteFile(memoryPath(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged(memoryPath(dir)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Forget(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
