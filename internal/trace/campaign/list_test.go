package campaign

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/present"
)

func TestReadList(t *testing.T) {
	names, err := ReadList(strings.NewReader("# servers\nExample.org.\n192.0.2.7 # a comment\n\nexample.org\n2001:db8::1\n_x.example\n"))
	if want := []string{"example.org", "192.0.2.7", "2001:db8::1", "_x.example"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	for text, want := range map[string]string{
		"a.example\nb example\n": "line 2", "http://example.org/\n": "line 1", "-x.example\n": "no address and no name",
		strings.Repeat("a", 5000): "line 1", "a..b\n": "line 1",
	} {
		if _, err := ReadList(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	r, err := ReadRefusals(strings.NewReader("example.org # by mail\n192.0.2.0/24\n2001:db8::1\n"))
	if err != nil || r.Len() != 3 {
		t.Fatal(r, err)
	}
	for name, want := range map[string]bool{"example.org": true, "a.b.example.org": true, "notexample.org": false, "org": false} {
		if r.Name(name) != want {
			t.Errorf("%s: refused %v", name, !want)
		}
	}
	for addr, want := range map[string]bool{"192.0.2.200": true, "192.0.3.1": false, "2001:db8::1": true, "2001:db8::2": false} {
		if r.Addr(netip.MustParseAddr(addr)) != want {
			t.Errorf("%s: refused %v", addr, !want)
		}
	}
	if _, err := ReadRefusals(strings.NewReader("ok.example\n192.0.2.0/99\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("error %v", err)
	}
}

func FuzzReadList(f *testing.F) {
	f.Add("example.org\n192.0.2.7 # x\n")
	f.Fuzz(func(t *testing.T, text string) {
		names, err := ReadList(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, name := range names {
			if _, err := netip.ParseAddr(name); err != nil && !isName(name) {
				t.Errorf("took %q", name)
			}
		}
	})
}

func TestParseProbe(t *testing.T) {
	const good = "IP / tcp{dst=80} / MSS"
	for contact, want := range map[string]string{
		"": "10 to 200 characters", "research of my own": "no mail address and no URL", "noc@exämple.org, paths": "printable ASCII",
		strings.Repeat("noc@example.org ", 20): "10 to 200",
	} {
		if _, err := ParseProbe(good, contact); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", contact, err, want)
		}
	}
	for _, contact := range []string{"path measurement, noc@example.org", "see https://example.org/paths"} {
		if _, err := ParseProbe(good, contact); err != nil {
			t.Errorf("%q: %v", contact, err)
		}
	}
}

// A campaign that was cut off in the middle of a line goes on, and a file of something else is left alone.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Add(&Record{Schema: Schema, Name: "a.example"}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), "another campaign") {
		t.Errorf("a second campaign on the same file: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, `{"schema":"dcol.trace-camp`...), 0o644); err != nil {
		t.Fatal(err)
	}
	if f, err = OpenFile(path); err != nil || !f.Done[Done{Name: "a.example"}] || f.Damaged != 1 {
		t.Fatal(f, err)
	}
	if err := f.Add(&Record{Schema: Schema, Name: "b.example"}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f, err = OpenFile(path); err != nil || len(f.Done) != 2 || f.Damaged != 1 {
		t.Fatal(f, err)
	}
	f.Close()
	other := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(other, []byte("dear diary\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(other); err == nil || !strings.Contains(err.Error(), "no file of a campaign") {
		t.Errorf("error %v", err)
	}
}

// The file knows by which vantage point an address was probed.
func TestFileHasAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Record{
		{Name: "a.example", Trace: &present.Trace{Destination: "192.0.2.7"}},
		{Name: "a.example", From: "bob", Trace: &present.Trace{Destination: "192.0.2.8"}},
		{Name: "b.example", Skipped: "it asked not to be probed"}, {Name: "c.example", Trace: &present.Trace{Destination: "no address"}},
	} {
		r.Schema = Schema
		if err := f.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	if f, err = OpenFile(path); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := map[string]map[netip.Addr]string{"": {netip.MustParseAddr("192.0.2.7"): "a.example"}, "bob": {netip.MustParseAddr("192.0.2.8"): "a.example"}}
	if !maps.EqualFunc(f.Probed, want, maps.Equal) || len(f.Done) != 4 {
		t.Errorf("probed %v, want %v", f.Probed, want)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"schema":"dcol.trace-campaign/1","name":"a","trace":{"hops":[{"distance":1}]}}` + "\nx\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Read(strings.NewReader(string(data)), func(r *Record) {
			if r.Name == "" {
				t.Error("took a record without a name")
			}
		})
	})
}
