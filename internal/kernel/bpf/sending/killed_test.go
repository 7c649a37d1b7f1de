package sending

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
)

// holder is the variable by which this program gives subflows a setting. Each line of its input names one; it answers each
// with a line when the subflow has it, and lives until it is killed.
const holder = "DCOL_TEST_HOLD"

var held = Setting{Rate: 4e6, UserTimeout: 20 * time.Second}

func hold() error {
	s, err := Open("", nil)
	if err != nil {
		return err
	}
	fmt.Println("open")
	for n, lines := uint64(1), bufio.NewScanner(os.Stdin); lines.Scan(); n++ {
		var local, remote string
		if _, err := fmt.Sscan(lines.Text(), &local, &remote); err != nil {
			return err
		}
		if err := s.Set(netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote), held); err != nil {
			return err
		}
		for set := uint64(0); set < n; time.Sleep(time.Millisecond) {
			if set, _, err = s.Counts(); err != nil {
				return err
			}
		}
		fmt.Println("set")
	}
	return s.Close()
}

// The process that set how a subflow sends is killed. The subflow goes on, and keeps what it has. The next process can only
// lower that: it cannot know who has set it.
func TestKilledInMidTransfer(t *testing.T) {
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	seen := cgrouptest.NewForeign(t, p.Client, cgrouptest.ForeignSettings{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(self)
	program.Env = append(os.Environ(), holder+"=1")
	in, out := p.Client.Start(t, program, "")
	lines := bufio.NewReader(out)
	answered := func(want string) {
		if line, err := lines.ReadString('\n'); line != want+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	has := func(when string, want Setting) {
		p.Nudge(t, p.Join)
		if got := seen.Now(t); got.BytesPerSecond != uint32(want.Rate/8) || got.UserTimeout != want.UserTimeout {
			t.Errorf("%s the subflow has %+v, want %+v", when, got, want)
		}
	}
	answered("open")
	p.Connect(t, "10.0.1.1")
	if _, err := fmt.Fprintln(in, p.Join.Local, p.Join.Remote); err != nil {
		t.Fatal(err)
	}
	for stop := time.Now().Add(time.Second); time.Now().Before(stop); time.Sleep(50 * time.Millisecond) {
		p.Nudge(t, p.Join)
	}
	answered("set")
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil { // until it is gone
		t.Fatal(err)
	}
	has("after the end", held)
	s := open(t, p)
	lower := Setting{Rate: 2e6, UserTimeout: 10 * time.Second}
	for i, wanted := range []Setting{{Rate: 8e6, UserTimeout: time.Minute}, lower, {}} {
		if err := s.Set(p.Join.Local, p.Join.Remote, wanted); err != nil {
			t.Fatal(err)
		}
		p.Nudge(t, p.Join)
		taken(t, s, uint64(i+1))
		want := held
		if wanted == lower {
			want = lower
		}
		has(fmt.Sprintf("asked for %+v by the next,", wanted), want)
	}
}
