package netstate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

const (
	forward   = "net/ipv4/ip_forward"
	redirects = "net/ipv4/conf/all/accept_redirects"
	ttl       = "net/ipv4/ip_default_ttl"
)

func mustSysctl(t *testing.T, key, want string) {
	t.Helper()
	if got, err := Sysctl(key); err != nil || got != want {
		t.Errorf("%s is %q, %v; want %q", key, got, err, want)
	}
}

func mustOpen(t *testing.T, path string) *Record {
	t.Helper()
	r, err := OpenRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustSet(t *testing.T, r *Record, key, value string) (changed bool) {
	t.Helper()
	changed, err := r.Set(key, value)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// inNamespace runs a test inside a network namespace of its own; it must not end the goroutine.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	netnstest.New(t).Must(t, func() error { f(); return nil })
}

func TestSysctlErrors(t *testing.T) {
	if _, err := Sysctl("net/ipv4/no_such_thing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing key: %v", err)
	}
	if err := SetSysctl("net/ipv4/no_such_thing", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing key: %v", err)
	}
	for _, key := range []string{"", "../../etc/passwd", "/etc/passwd", "net/../../x"} {
		if _, err := Sysctl(key); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	const pattern = "kernel/core_pattern" // names a program that root runs
	before, err := Sysctl(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{pattern, "net/../" + pattern} {
		if err := SetSysctl(key, before); err == nil || !strings.Contains(err.Error(), "below net") {
			t.Errorf("key %q: %v", key, err)
		}
	}
	inNamespace(t, func() {
		if err := SetSysctl(ttl, "not a number"); err == nil || !strings.Contains(err.Error(), ttl) {
			t.Errorf("bad value: %v", err)
		}
	})
}

func TestRecordRestores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "sysctls.json")
	inNamespace(t, func() {
		if err := SetSysctl(redirects, "0"); err != nil {
			t.Error(err)
		}
		r := mustOpen(t, path)
		if mustSet(t, r, forward, "0") {
			t.Error("setting what is so already is a change")
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a record without a change has a file")
		}
		if err := r.Keep(redirects); err != nil {
			t.Error(err)
		}
		if !mustSet(t, r, forward, "1") || !mustSet(t, r, ttl, "70") || !mustSet(t, r, ttl, "71") {
			t.Error("a change is not one")
		}
		mustSysctl(t, redirects, "0") // kept so by hand below, as the kernel resets it only later
		mustSysctl(t, ttl, "71")

		// The agent dies; another goes on; a third, `dcol down`, restores.
		r = mustOpen(t, path)
		if !r.Changed(forward) || r.Changed(redirects) || r.Changed("net/ipv4/tcp_sack") {
			t.Error("Changed tells wrong")
		}
		mustSet(t, r, ttl, "72")
		for range 2 {
			if err := mustOpen(t, path).Restore(); err != nil {
				t.Error(err)
			}
			mustSysctl(t, ttl, "64")
			mustSysctl(t, forward, "0")
			mustSysctl(t, redirects, "0") // switching forwarding off has set it to 1
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the record is left")
			}
		}
	})
}

func TestRecordLeavesOthersChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sysctls.json")
	inNamespace(t, func() {
		r := mustOpen(t, path)
		mustSet(t, r, ttl, "70")
		if err := SetSysctl(ttl, "99"); err != nil { // the operator's
			t.Error(err)
		}
		if err := r.Restore(); err != nil {
			t.Error(err)
		}
		mustSysctl(t, ttl, "99")
	})
}

// A record of another network namespace, or of another boot, is of no kernel state that is there.
func TestRecordOfElsewhereIsDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sysctls.json")
	inNamespace(t, func() { mustSet(t, mustOpen(t, path), ttl, "70") })
	inNamespace(t, func() {
		if err := SetSysctl(ttl, "70"); err != nil {
			t.Error(err)
		}
		if err := mustOpen(t, path).Restore(); err != nil {
			t.Error(err)
		}
		mustSysctl(t, ttl, "70")

		mustSet(t, mustOpen(t, path), ttl, "80")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		boot, _ := Sysctl("kernel/random/boot_id")
		old := strings.Replace(string(content), boot, "00000000-0000-0000-0000-000000000000", 1)
		if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
			t.Error(err)
		}
		if err := mustOpen(t, path).Restore(); err != nil {
			t.Error(err)
		}
		mustSysctl(t, ttl, "80")
	})
}

// A damaged record keeps nobody from going on: it is set aside, and what it still shows is put back.
func TestDamagedRecord(t *testing.T) {
	whole := func(t *testing.T, path string) string {
		mustSet(t, mustOpen(t, path), ttl, "70")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return string(content)
	}
	for _, test := range []struct {
		name   string
		damage func(content string) string
		why    string
		kept   []string
		ttl    string // after Restore
	}{
		{"empty", func(string) string { return "" }, "unexpected end", nil, "70"},
		{"zeros", func(c string) string { return strings.Repeat("\x00", len(c)) }, "invalid character", nil, "70"},
		{"another program's", func(string) string { return "{}" }, "version 0", nil, "70"},
		{"a newer version's", func(c string) string { return strings.Replace(c, `"version": 1`, `"version": 99`, 1) }, "version 99", []string{"net.ipv4.ip_default_ttl"}, "64"},
		{"cut off before the list", func(c string) string { before, _, _ := strings.Cut(c, `"sysctls"`); return before }, "unexpected end", nil, "70"},
		{"cut off behind the list", func(c string) string { return c[:strings.LastIndex(c, "]")] }, "unexpected end", []string{"net.ipv4.ip_default_ttl"}, "64"},
		{"cut off, of another boot", func(c string) string {
			boot, _ := Sysctl(bootIDKey)
			c = strings.ReplaceAll(c, boot, "00000000-0000-0000-0000-000000000000")
			return c[:strings.LastIndex(c, "]")]
		}, "unexpected end", nil, "70"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sysctls.json")
			inNamespace(t, func() {
				damaged := test.damage(whole(t, path))
				if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
					t.Error(err)
				}
				if err := Damaged(path); err != nil {
					t.Errorf("before anybody looked: %v", err)
				}
				r, err := OpenRecord(path)
				if err != nil {
					t.Error(err)
					return
				}
				if r.Changed(ttl) != (len(test.kept) > 0) {
					t.Errorf("ours: %v, and kept is %q", r.Changed(ttl), test.kept)
				}
				for range 2 {
					if err := mustOpen(t, path).Restore(); err != nil {
						t.Error(err)
					}
					mustSysctl(t, ttl, test.ttl)
				}
				// It is told until the file is removed.
				d, ok := errors.AsType[*DamagedError](Damaged(path))
				if !ok || !strings.Contains(d.Error(), test.why) || !slices.Equal(d.Kept, test.kept) || d.Record != path {
					t.Errorf("told: %#v", Damaged(path))
					return
				}
				if aside, err := os.ReadFile(d.Aside); err != nil || string(aside) != damaged {
					t.Errorf("kept aside is %q, %v", aside, err)
				}
				if err := os.Remove(d.Aside); err != nil {
					t.Error(err)
				}
				if err := Damaged(path); err != nil {
					t.Errorf("after the file was removed: %v", err)
				}
			})
		})
	}
}

// A sysctl of an interface that has gone is nothing to restore.
func TestRestoreOfWhatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sysctls.json")
	a, b := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: a, Name: "v.0"}, netnstest.End{NS: b, Name: "v"})
	a.Must(t, func() error {
		r, err := OpenRecord(path)
		if err != nil {
			return err
		}
		_, err = r.Set("net/ipv4/conf/v.0/forwarding", "1")
		return err
	})
	a.Output(t, "ip", "link", "del", "v.0")
	a.Must(t, func() error {
		r, err := OpenRecord(path)
		if err != nil {
			return err
		}
		return r.Restore()
	})
}
