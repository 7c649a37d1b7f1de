package chaos

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/programs/programstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	goleak.VerifyTestMain(m)
}

// cannot says why no world can be built here; "" if one can.
func cannot() string {
	if os.Geteuid() != 0 {
		return "needs root, for network namespaces"
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		return "this kernel has no MPTCP"
	}
	for _, name := range []string{"nft", "conntrack", "setpriv", "openvpn", "ss", "nstat", "ip"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Sprintf("needs the program %s", name)
		}
	}
	return ""
}

// The patches that `make chaos-bites` undoes fixes with still fit the code.
func TestBitesApply(t *testing.T) {
	patches, err := filepath.Glob("testdata/bites/*.patch")
	if err != nil || len(patches) < 5 {
		t.Fatalf("%d patches, %v", len(patches), err)
	}
	for _, patch := range patches {
		cmd := exec.Command("git", "apply", "--check", filepath.Join("lab/chaos", patch))
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", patch, err, out)
		}
	}
}

// Twenty faults, always the same ones, find nothing. `make chaos` does the same
// with as many as one likes.
//
// `make test` runs tests that fail once more, alone. That must not hide harm to a user, which no busy machine excuses:
// what it makes slow, it makes slow for the twins as well. So such a finding is a panic, after which nothing is run
// again. A sequence that could not be carried out is tried once more by the campaign itself, as the lab's agents may
// take longer to be up than it waits.
func TestTwentyFaults(t *testing.T) {
	if why := cannot(); why != "" {
		t.Skip(why)
	}
	out := t.TempDir()
	r, err := Run(t.Context(), Options{
		Faults: 20, Seed: 1, Worlds: 3, Programs: programstest.Build(t), Version: "test", Out: out,
		Stderr: t.Output(), Log: slog.New(slog.DiscardHandler),
	})
	if r.Broken+r.WrongBytes+r.Unauthorised > 0 {
		panic(fmt.Sprintf("%+v", r))
	}
	if errors.Is(err, ErrFindings) {
		t.Fatalf("%+v", r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Faults < 20 || r.Sequences < 2 {
		t.Errorf("%d faults in %d sequences", r.Faults, r.Sequences)
	}
}
