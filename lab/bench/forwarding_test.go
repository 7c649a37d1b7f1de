package bench

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/packet"
)

// needs skips unless programs are there.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
}

// All ways carry something, of both sizes, and the figures of in-band detours have
// targets.
func smallForwarding(t *testing.T, o Options) {
	needs(t, "nft", "socat", "openvpn")
	found, err := compareForwarding(t.Context(), o, forwardingPlan{1, transferPlan{rampUp: 50 * time.Millisecond, look: 200 * time.Millisecond}, packetPlan{2, 50}})
	if err != nil {
		t.Fatal(err)
	}
	const ways, sizes, packets = 8, 2, 6
	if want := sizes*(3*ways-1) + packets; len(found) != want {
		t.Errorf("%d figures, want %d", len(found), want)
	}
	targets := 0
	for _, m := range found {
		if !strings.Contains(m.Name, "between the ends") && m.Unit != "ns" && !(m.Value > 0) {
			t.Errorf("%+v: nothing was measured", m)
		}
		if m.Met == nil {
			continue
		}
		if targets++; !strings.HasSuffix(m.Name, ", "+string(config.InBand)) {
			t.Errorf("%s has a target", m.Name)
		}
	}
	if want := 5; targets != want {
		t.Errorf("%d targets, want %d", targets, want)
	}
}

// Every SYN arrives, authenticated or not; figures are there for each way.
func smallJoins(t *testing.T, o Options) {
	needs(t, "nft")
	found, err := compareJoins(t.Context(), o, joinsPlan{repetitions: 2, each: 50})
	if err != nil {
		t.Fatal(err)
	}
	if want := 10; len(found) != want {
		t.Errorf("%d figures, want %d", len(found), want)
	}
	for _, m := range found {
		if strings.HasSuffix(m.Unit, "SYNs/s") && !(m.Value > 0) {
			t.Errorf("%+v: nothing was measured", m)
		}
	}
}

// A SYN is whole: its sums hold, and its TSecr proves what it says.
func TestSYN(t *testing.T) {
	s := synSource{
		client: net.HardwareAddr{2, 0, 0, 0, 0, 1}, next: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		from: netip.MustParseAddr("10.0.1.1"), to: netip.MustParseAddrPort("10.0.1.2:5001"), server: netip.MustParseAddr("10.0.2.2"),
		auth: &inband.Auth{Key: inband.Key{1}, Client: netip.MustParseAddr("10.0.1.1"), ClientPort: true},
	}
	one := s.frame(2000, 7)
	if len(one) != synSize {
		t.Fatalf("%d bytes, want %d", len(one), synSize)
	}
	p, err := packet.Parse(one[14:])
	if err != nil || p.Verify() != nil {
		t.Fatal(err, p.Verify())
	}
	tcp := one[34:]
	if option := string(tcp[len(tcp)-8:]); option != "\xfe\x08\xdc\x01\x0a\x00\x02\x02" {
		t.Errorf("the last option is %x", option)
	}
	const tsecr = 20 + 12
	for name, other := range map[string][]byte{"port": s.frame(2001, 7), "sequence number": s.frame(2000, 8)} {
		if string(other[34+tsecr:34+tsecr+4]) == string(tcp[tsecr:tsecr+4]) {
			t.Errorf("another %s has the same proof", name)
		}
	}
	s.auth, s.server = nil, netip.Addr{}
	if bare := s.frame(2000, 7); len(bare) != synSize || string(bare[34+tsecr:34+tsecr+4]) != "\x00\x00\x00\x00" {
		t.Errorf("a SYN without a detour: %x", bare)
	}
}

// Time is counted of this process, of its children and of nobody else.
func TestSpent(t *testing.T) {
	before, err := readProcessTimes()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	after, err := readProcessTimes()
	if err != nil {
		t.Fatal(err)
	}
	if _, counted := after[cmd.Process.Pid]; !counted {
		t.Error("a child is not counted")
	}
	if _, counted := after[1]; counted && os.Getpid() != 1 {
		t.Error("the first process of the machine is counted")
	}
	if after[os.Getpid()] <= before[os.Getpid()] || after.since(before) <= 0 {
		t.Errorf("this process has taken %v and then %v", before[os.Getpid()], after[os.Getpid()])
	}
	if got := (processTimes{1: 5, 3: 2}).since(processTimes{1: 3, 2: 9}); got != 4 {
		t.Errorf("one went on for 2, one ended, one began and took 2: %d in all", got)
	}
}

func TestParseParent(t *testing.T) {
	if got, err := parseParent("71 (a ) Z 1) S 12 71 71 0"); err != nil || got != 12 {
		t.Errorf("%d, %v; want 12", got, err)
	}
	for _, text := range []string{"", "71", "71 (a) S", "71 (a) S x"} {
		if _, err := parseParent(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func FuzzParseParent(f *testing.F) {
	f.Add("71 (dcol) S 1 71")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseParent(text) })
}
