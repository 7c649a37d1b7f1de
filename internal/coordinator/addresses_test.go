package coordinator

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A member that publishes another's address must not make other members connect to it: the record does not get
// into the directory, and only few members are asked to try. Once one of them has reached the member there, the
// record is accepted.
func TestRecordsAimAtNobody(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	mallory := w.member("mallory")
	var mu sync.Mutex
	var tried []string
	reachable := false
	for _, name := range []string{"m1", "m2", "m3", "m4", "m5"} {
		h := w.member(name)
		h.check = func(c enrol.Check) enrol.Checked {
			mu.Lock()
			defer mu.Unlock()
			if c.Name == "mallory" {
				tried = append(tried, c.Addresses[0].String())
				if len(c.Record) == 0 && !w.lists(c.Name, c.Addresses) {
					t.Error("nothing proves that mallory named the address")
				}
				return enrol.Checked{ID: c.ID, Reachable: reachable, Why: "no answer"}
			}
			return enrol.Checked{ID: c.ID, Reachable: true}
		}
		go h.answerChecks()
		if err := h.publish(h.record()); err != nil {
			t.Fatal(err)
		}
	}
	r := mallory.record()
	r.Addresses = parseAll("203.0.113.9", "10.1.2.3")
	byAddress := cmpopts.EquateComparable(netip.Addr{})
	if diff := cmp.Diff(r.Addresses, mallory.claim(r), byAddress); diff != "" {
		t.Fatal(diff)
	}
	asked := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(tried)
	}
	eventually(t, "two have tried", 10*time.Second, func() bool { return asked() == 2 && !w.c.prober.Trying() })
	if unshown := mallory.claim(r); len(unshown) != 2 {
		t.Errorf("taken although nobody got there: %v", unshown)
	}
	if _, there := mallory.directory().Get("mallory"); there {
		t.Error("the record is in the directory")
	}
	mu.Lock()
	for _, at := range tried {
		if at != "203.0.113.9" {
			t.Errorf("%s was tried: it is private, and mallory is in no private network of ours", at)
		}
	}
	reachable = true
	mu.Unlock()
	eventually(t, "the address is shown", 20*time.Second, func() bool {
		r := mallory.record()
		r.Addresses = parseAll("203.0.113.9")
		return mallory.claim(r) == nil
	})
	if _, there := mallory.directory().Get("mallory"); !there {
		t.Error("the record is not in the directory")
	}
}

// lists reports whether the directory has a member's record with these addresses. A member that is asked to try
// them then needs no other proof that the member named them.
func (w *world) lists(name string, addresses []netip.Addr) (yes bool) {
	w.c.records.View(func(d *directory.Directory) {
		v, there := d.Get(name)
		yes = there && !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(v.Record.Addresses, a) })
	})
	return yes
}

const inNamespace = "DCOL_TEST_IN_NAMESPACE"

// Nobody need try an address that a member is connected from.
func TestConnectedAddressIsShown(t *testing.T) {
	t.Parallel()
	if os.Getenv(inNamespace) == "" {
		again(t, syscall.CLONE_NEWNET)
		return
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", "203.0.113.5/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	w := newWorld(t)
	w.at = "203.0.113.5"
	w.reopen()
	w.run()
	alice := w.member("alice")
	r := alice.record()
	r.Addresses = parseAll("203.0.113.5")
	if unshown := alice.claim(r); unshown != nil {
		t.Errorf("not taken: %v", unshown)
	}
	r = alice.record()
	r.Addresses = parseAll("203.0.113.5", "203.0.113.6")
	if diff := cmp.Diff(parseAll("203.0.113.6"), alice.claim(r), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	if v, there := alice.directory().Get("alice"); !there || len(v.Record.Addresses) != 1 {
		t.Error("the directory has not the address that was shown")
	}
}

// again runs the test in new namespaces.
func again(t *testing.T, namespaces uintptr) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
