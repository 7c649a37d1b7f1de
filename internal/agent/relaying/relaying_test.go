package relaying

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// holdsOf names the environment variable with a file in which a test's relay writes its process before it stops without
// answering.
const holdsOf = "DCOL_TEST_RELAY_HOLDS"

// versionOf names the environment variable with the version of a test's relays. Outside of tests the linker sets it.
const versionOf = "DCOL_TEST_RELAY_VERSION"

// TestMain runs the relays that a Keeper starts: this program with the arguments that dcol would get.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "relay" && os.Args[2] == "--dir" {
		if file := os.Getenv(holdsOf); file != "" {
			hold(file)
		}
		config := relay.Config{Dir: os.Args[3], Version: os.Getenv(versionOf), Log: slog.New(slog.DiscardHandler)}
		err := relay.LimitRights()
		if err == nil {
			err = relay.Run(context.Background(), config)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hold writes this process to a file, and waits for ever.
func hold(file string) {
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600); err == nil {
		_ = os.Rename(file+".new", file)
	}
	for {
		time.Sleep(time.Hour)
	}
}

// A relay that is starting when none is wanted any more, or when the agent ends, does not stay.
func TestRelayThatStartsDoesNotStay(t *testing.T) {
	for name, leave := range map[string]func(k *Keeper, cancel func()){
		"agent ends":  func(_ *Keeper, cancel func()) { cancel() },
		"none wanted": func(k *Keeper, _ func()) { k.Change(func(s *relay.State) { s.Serve = nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			ns, dir := netnstest.New(t), t.TempDir()
			file := filepath.Join(dir, "starting")
			t.Setenv(holdsOf, file)
			k, stop := kept(t, ns, dir, "1")
			pid := 0
			for end := time.Now().Add(20 * time.Second); pid == 0; time.Sleep(5 * time.Millisecond) {
				if text, err := os.ReadFile(file); err == nil {
					if pid, err = strconv.Atoi(string(text)); err != nil {
						t.Fatal(err)
					}
				}
				if time.Now().After(end) {
					t.Fatal("no relay starts")
				}
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			ended := false
			leave(k, func() { stop(); ended = true })
			for end := time.Now().Add(startLimit + 20*time.Second); !ended && syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the relay, process %d, is still starting", pid)
				}
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the relay, process %d, is left: %v", pid, err)
			}
			if !ended {
				stop()
			}
		})
	}
}

// kept runs a Keeper in a namespace until stop.
func kept(t *testing.T, ns *netnstest.NS, dir, version string) (k *Keeper, stop func()) {
	t.Helper()
	t.Setenv(versionOf, version)
	k = New(Config{
		Dir: dir, Version: version, LogLevel: "info", Log: slog.New(slog.DiscardHandler),
		State: relay.State{Serve: &relay.Serve{Port: 5124, Key: cookie.Key{1}}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ns.Do(func() error { return k.Run(ctx) }) }()
	return k, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// up waits until a relay listens that is like like, and returns its process.
func up(t *testing.T, k *Keeper, like func(relay.Status) bool) (pid int) {
	t.Helper()
	var last Standing
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		last = k.Standing()
		if r := last.Relay; r != nil && r.Parts[relay.PartServe] != nil && r.Parts[relay.PartServe].Problem == "" && like(*r) {
			return r.PID
		}
	}
	t.Fatalf("the relay is not as it should be: %+v, %+v", last, last.Relay)
	return 0
}

// A relay is started, and started again when it is killed. It continues without the agent; the next agent keeps one of
// its own version, and replaces another.
func TestKeeper(t *testing.T) {
	ns, dir := netnstest.New(t), t.TempDir()
	t.Cleanup(func() {
		if err := End(dir); err != nil {
			t.Error(err)
		}
	})
	k, stop := kept(t, ns, dir, "1")
	whichever := func(relay.Status) bool { return true }
	first := up(t, k, whichever)
	hasFewRights(t, first)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := up(t, k, func(s relay.Status) bool { return s.PID != first })
	for _, mode := range []choice.Mode{choice.Always, choice.Auto} {
		k.Change(func(s *relay.State) { s.Use = &relay.Use{Mode: mode} })
		k.Settle(t.Context())
		if u := k.Standing().Use; u == nil || u.Mode != mode {
			t.Errorf("the relay has confirmed %+v, not mode %v", u, mode)
		}
	}
	stop()
	if err := syscall.Kill(second, 0); err != nil {
		t.Fatalf("the relay has ended with the agent: %v", err)
	}
	k, stop = kept(t, ns, dir, "1")
	if pid := up(t, k, whichever); pid != second {
		t.Errorf("relay %d was replaced by %d of the same version", second, pid)
	}
	stop()
	k, stop = kept(t, ns, dir, "2")
	third := up(t, k, func(s relay.Status) bool { return s.Version == "2" })
	if third == second {
		t.Errorf("relay %d has two versions", third)
	}
	k.Change(func(s *relay.State) { s.Serve = nil })
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c, err := relay.Dial(dir)
		if errors.Is(err, relay.ErrNone) {
			break
		}
		if err == nil {
			c.Close()
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("the relay runs on with nothing to do: %v", err)
		}
	}
	stop()
}

// keptRelay returns a Keeper with its relay's process. Both end with the test.
func keptRelay(t *testing.T) (k *Keeper, pid int) {
	t.Helper()
	ns, dir := netnstest.New(t), t.TempDir()
	t.Cleanup(func() {
		if err := End(dir); err != nil {
			t.Error(err)
		}
	})
	k, stop := kept(t, ns, dir, "1")
	t.Cleanup(stop)
	return k, up(t, k, func(relay.Status) bool { return true })
}

// A relay that is stopped soon counts as absent. It is then killed, and the next one has its addresses.
func TestKeeperReplacesStoppedRelay(t *testing.T) {
	k, first := keptRelay(t)
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(first, syscall.SIGKILL) })
	k.Change(func(s *relay.State) { s.Use = &relay.Use{Mode: choice.Always} })
	began := time.Now()
	for k.Standing().Relay != nil {
		if k.Standing().Use != nil {
			t.Fatal("a stopped relay has confirmed its orders")
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("the stopped relay counts as one")
		}
		time.Sleep(10 * time.Millisecond)
	}
	absent := time.Since(began)
	up(t, k, func(s relay.Status) bool { return s.PID != first })
	if u := k.Standing().Use; u == nil || u.Mode != choice.Always {
		t.Errorf("the next relay has confirmed %+v", u)
	}
	t.Logf("the stopped relay was absent after %v, and the next was ready after %v", absent, time.Since(began))
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", first)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stopped relay is still there: %v", err)
	}
}

// Who waits for a change waits until a relay that does not answer is killed, because it may do until then what it did before.
func TestSettleOutlivesStoppedRelay(t *testing.T) {
	for name, change := range map[string]func(*relay.State){
		"none wanted":  func(s *relay.State) { s.Serve = nil },
		"other orders": func(s *relay.State) { s.Use = &relay.Use{Mode: choice.Always} },
	} {
		t.Run(name, func(t *testing.T) {
			k, pid := keptRelay(t)
			suspend(t, pid)
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			k.Change(change)
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			k.Settle(ctx)
			if err := ctx.Err(); err != nil {
				t.Errorf("not settled: %v", err)
			}
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
				t.Errorf("the stopped relay is still there: %s", stat)
			}
			if s := k.Standing(); s.Err != nil {
				t.Error(s.Err)
			}
		})
	}
}

// End ends a relay that is stopped.
func TestEndOfStoppedRelay(t *testing.T) {
	ns, dir := netnstest.New(t), t.TempDir()
	k, stop := kept(t, ns, dir, "1")
	pid := up(t, k, func(relay.Status) bool { return true })
	stop()
	suspend(t, pid)
	if err := End(dir); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Fatal(err)
	}
	if c, err := relay.Dial(dir); !errors.Is(err, relay.ErrNone) {
		c.Close()
		t.Errorf("the relay is still there: %v", err)
	}
}

// An agent that is not root cannot end a hung relay of root's agent, and leaves that to root. Nothing else is ended.
func TestEndOfHungRelay(t *testing.T) {
	ns, dir := netnstest.New(t), t.TempDir()
	k, stop := kept(t, ns, dir, "1")
	pid := up(t, k, func(relay.Status) bool { return true })
	stop()
	const agent = 65534
	if err := EndHung(dir, agent); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("a relay that answers was ended: %v", err)
	}
	suspend(t, pid)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	if err := EndHung(dir, os.Geteuid()); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the agent's own relay was ended: %v", err)
	}
	if err := EndHung(dir, agent); err != nil {
		t.Error(err)
	}
	if c, err := relay.Dial(dir); !errors.Is(err, relay.ErrNone) {
		c.Close()
		t.Errorf("the relay is still there: %v", err)
	}
}

// The agent's user can put the socket of another program where the relay's was. That program is not ended.
func TestOnlyRelaysAreEnded(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink("other", filepath.Join(dir, "relay-control.sock")); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{func() error { return End(dir) }, func() error { return EndHung(dir, os.Geteuid()+1) }} {
		if err := end(); err == nil || !strings.Contains(err.Error(), "kill -KILL") {
			t.Errorf("the error is %v", err)
		}
	}
}

// suspend stops a process, and waits until it has stopped.
func suspend(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "T") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d runs on: %s", pid, stat)
		}
	}
}

// hasFewRights checks the capabilities of all threads of a relay, and that a program which it starts gets no others.
func hasFewRights(t *testing.T, pid int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("relay %d has no threads: %v", pid, err)
	}
	few := uint64(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF | 1<<unix.CAP_NET_BIND_SERVICE)
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]uint64{"CapPrm": few, "CapEff": few, "CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1} {
			_, value, found := strings.Cut(string(text), "\n"+name+":\t")
			value, _, _ = strings.Cut(value, "\n")
			if got, err := strconv.ParseUint(value, 16, 64); !found || err != nil || got != want {
				t.Errorf("%s: %s is %q, want %x", file, name, value, want)
			}
		}
	}
}

// A relay that cannot start is reported, with the cause.
func TestKeeperReports(t *testing.T) {
	ns := netnstest.New(t)
	k, stop := kept(t, ns, t.TempDir()+"/missing", "1")
	defer stop()
	for began := time.Now(); k.Standing().Err == nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("no error")
		}
	}
}
