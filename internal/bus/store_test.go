package bus

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/strangers"
)

// TestDamagedStore damages each file of the store in turn, in several ways, as a power cut or a bad disk may. Each time
// the server must start, and either have everything or name the damage. What is written then must be there after the
// next start.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	whole := t.TempDir()
	s := w.serve(whole, "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	ctx := within(t, time.Minute)
	b, err := co.Bucket(ctx, "records", 1)
	if err != nil {
		t.Fatal(err)
	}
	const values = 50
	for i := range values {
		if _, err := b.Put(ctx, fmt.Sprintf("member%02d", i), []byte(strings.Repeat("record ", 20))); err != nil {
			t.Fatal(err)
		}
	}
	// If a store syncs every write, a power cut leaves the same as a copy made while it runs.
	running := t.TempDir()
	if err := os.CopyFS(running, os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	co.Close()
	s.Close()

	for kind, from := range map[string]string{"stopped": whole, "running": running} {
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		if got, last, damage := w.reopen(t, copied); got != values || last != values || len(damage) > 0 {
			t.Errorf("%s and unharmed: %d of %d values, damage %q", kind, got, values, damage)
		}
		for _, file := range filesOf(t, from) {
			for name, harm := range map[string]func([]byte) []byte{
				"empty":  func([]byte) []byte { return nil },
				"half":   func(b []byte) []byte { return b[:len(b)/2+1] }, // not at the end of a message
				"torn":   func(b []byte) []byte { return b[:max(0, len(b)-3)] },
				"zeroed": func(b []byte) []byte { clear(b[len(b)/2:]); return b },
				"scrambled": func(b []byte) []byte {
					for i := len(b) / 3; i < len(b); i += 97 {
						b[i] ^= 0x55
					}
					return b
				},
				"missing": nil,
			} {
				t.Run(kind+"/"+filepath.Base(file)+"/"+name, func(t *testing.T) {
					dir := t.TempDir()
					if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
						t.Fatal(err)
					}
					path := filepath.Join(dir, file)
					if harm == nil {
						os.Remove(path)
					} else {
						data, err := os.ReadFile(path)
						if err != nil {
							t.Fatal(err)
						}
						if err := os.WriteFile(path, harm(data), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					got, last, damage := w.reopen(t, dir)
					if got < values && len(damage) == 0 && last >= values {
						t.Errorf("%d of %d values, and no word of it", got, values)
					}
					traceless := name == "empty" || name == "missing"
					if got < values && len(damage) == 0 && !traceless {
						t.Errorf("%d of %d values, and the server says nothing", got, values)
					}
					t.Logf("%d of %d values, last revision %d, damage %q", got, values, last, damage)
				})
			}
		}
	}
}

// reopen serves from dir twice. It returns how many values are there at the first start, the revision of the last
// change, and the damage that the server reports.
func (w *world) reopen(t *testing.T, dir string) (values int, last uint64, damage []string) {
	t.Helper()
	for try := range 2 {
		func() {
			s, err := Serve(ServerConfig{Identity: w.hub, Authority: w.authority, Listen: "127.0.0.1:0", Store: dir, MaxConnections: 10, Seen: strangers.NewSeen(), Log: testLog(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			c := w.config(w.hub, s.Endpoint())
			c.Log = quiet()
			c.JWT = func() (string, error) {
				return w.authority.CoordinatorJWT("hub", w.hub.PublicKey(), w.hub.Self().NotAfter)
			}
			co, err := ConnectCoordinator(c, echo())
			if err != nil {
				t.Fatal(err)
			}
			defer co.Close()
			ctx := within(t, 10*time.Second)
			b, err := co.Bucket(ctx, "records", 1)
			if err != nil {
				t.Fatal(err)
			}
			if try == 1 {
				if e, err := b.Get(ctx, "after"); err != nil || string(e.Value) != "the cut" {
					t.Errorf("what was written after it: %+v, %v", e, err)
				}
				return
			}
			damage = s.Damage()
			if last, err = b.Last(ctx); err != nil {
				t.Fatal(err)
			}
			watch, stop := context.WithCancel(ctx)
			defer stop()
			if err := b.Watch(watch, func(e Entry) {
				if strings.HasPrefix(e.Key, "member") && len(e.Value) == 140 {
					values++
				}
			}, stop); watch.Err() == nil {
				t.Fatal(err)
			}
			if _, err := b.Put(ctx, "after", []byte("the cut")); err != nil {
				t.Errorf("it takes nothing more: %v", err)
			}
		}()
	}
	return values, last, damage
}

func filesOf(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			out = append(out, rel)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("files of the store: %v, %v", out, err)
	}
	return out
}

// TestNoCrashLoop: the process crashes at every start, as a damaged file might cause.
func TestNoCrashLoop(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	s := w.serve(dir, "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	b, err := co.Bucket(within(t, 10*time.Second), "records", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(within(t, 10*time.Second), "member00", []byte(strings.Repeat("record ", 20))); err != nil {
		t.Fatal(err)
	}
	co.Close()
	s.Close()
	for range startsBeforeAside {
		if _, damage, err := openStore(dir); err != nil || len(damage) > 0 { // ready is not called
			t.Fatal(damage, err)
		}
	}
	values, _, damage := w.reopen(t, dir)
	if values != 0 || len(damage) != 1 || !strings.Contains(damage[0], "3 times") {
		t.Fatalf("%d values, damage %q", values, damage)
	}
	_, where, _ := strings.Cut(damage[0], "it lies in ")
	if len(filesOf(t, strings.TrimSuffix(where, " now"))) == 0 {
		t.Errorf("nothing was put aside in %s", where)
	}
}

// TestServeFaults: faults elsewhere must not cause the store to be moved away.
func TestServeFaults(t *testing.T) {
	w := newWorld(t)
	store := t.TempDir()
	s := w.serve(store, "127.0.0.1:0")
	other := t.TempDir()
	config := ServerConfig{Identity: w.hub, Authority: w.authority, Listen: s.Endpoint().Address, Store: other, MaxConnections: 10, Seen: strangers.NewSeen(), Log: quiet()}
	if _, err := Serve(config); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, "damaged")); err == nil {
		t.Error("the store was put aside for a port that is taken")
	}
	for _, listen := range []string{"", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		config.Listen = listen
		if _, err := Serve(config); err == nil {
			t.Errorf("served on %q", listen)
		}
	}
	config.Listen = "127.0.0.1:0"
	config.Store = filepath.Join(store, "starting-not-a-directory")
	if err := os.WriteFile(config.Store, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(config); err == nil {
		t.Error("served from a file")
	}
}
