package forward

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// The test binary is also the process that a test kills.
func TestMain(m *testing.M) {
	if index := os.Getenv("FORWARD_TEST_INTERFACE"); index != "" {
		os.Exit(forwardUntilKilled(index))
	}
	os.Exit(m.Run())
}

func forwardUntilKilled(index string) int {
	number, err := strconv.Atoi(index)
	if err != nil {
		return failed(err)
	}
	f, err := Open()
	if err != nil {
		return failed(err)
	}
	if err := f.Attach([]int{number}); err != nil {
		return failed(err)
	}
	for _, flow := range []Flow{flow4, flow6} {
		// As Forward does when packets have been seen.
		known := way{stage: forwarded, numbers: Numbers{Begun: 1, Next: 7}}
		origin, reply := known, known
		origin.bytes, reply.bytes = 1, 2
		if err := f.add(flow, origin, reply); err != nil {
			return failed(err)
		}
	}
	fmt.Println("ready")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func checkFilters(t testing.TB, ns *netnstest.NS, want ...string) {
	t.Helper()
	ns.Must(t, func() error {
		if got := tcfiltertest.Describe(t); got != strings.Join(want, "\n") {
			t.Errorf("filters:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
		return nil
	})
}

// When the process is killed nothing is forwarded any more, and the next process
// learns what was.
func TestKilled(t *testing.T) {
	h := newHost(t)
	peer := netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: h.ns, Name: "live", Addresses: []string{"10.4.0.2/24"}}, netnstest.End{NS: peer, Name: "live"})
	var index int
	h.ns.Must(t, func() (err error) {
		index, h.mac, err = hardware("live")
		return err
	})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "FORWARD_TEST_INTERFACE="+strconv.Itoa(index))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.ns.Must(t, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}

	left := func() uint64 { // packets that left by the way out
		var n uint64
		h.ns.Must(t, func() (err error) { n, err = sent("out"); return err })
		return n
	}
	fire := sender(t, peer, "live")
	frame := h.packet(flow4.Origin).frame()
	before := left()
	fire(frame)
	for deadline := time.Now().Add(20 * time.Second); left() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is forwarded")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	fired := uint64(1)
	for deadline := time.Now().Add(20 * time.Second); ; {
		before := left()
		fire(frame)
		fired++
		time.Sleep(10 * time.Millisecond)
		if left() == before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("packets are forwarded without the process")
		}
	}
	checkFilters(t, h.ns, "live clsact", "live ingress dcol-forward+qdisc")

	var next *Forwarder
	h.ns.Must(t, func() (err error) { next, err = Open(); return err })
	defer next.Close()
	got := next.Left()
	// How many of them: the kernel's own packets (of neighbour discovery) leave by the same way.
	size := uint64(len(frame) - 14)
	passed := got[flow4.Origin]
	if n := (passed - 1) / size; (passed-1)%size != 0 || n < 1 || n > fired {
		t.Errorf("%d bytes passed, in %d packets of %d bytes, and one before", passed, fired, size)
	}
	want := map[Tuple]uint64{flow4.Origin: passed, flow4.Reply: 2, flow6.Origin: 1, flow6.Reply: 2}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if again := next.Left(); len(again) > 0 {
		t.Errorf("left twice: %v", again)
	}
	if err := next.Attach([]int{index}); err != nil {
		t.Fatal(err)
	}
	if err := next.Watch(flow4, Passed{Origin: got[flow4.Origin], Reply: got[flow4.Reply]}); err != nil {
		t.Fatal(err)
	}
	fire(h.packet(flow4.Reply).frame())
	fire(frame)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if state, err := next.Look(flow4); err != nil || time.Now().After(deadline) {
			t.Fatalf("what comes in is not noted: %+v, %v", state, err)
		} else if state.Seen.Origin.Begun > 0 && state.Seen.Reply.Begun > 0 {
			break
		}
	}
	if err := next.Forward(flow4); err != nil {
		t.Fatal(err)
	}
	before = left()
	fire(frame)
	for deadline := time.Now().Add(20 * time.Second); left() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the next process forwards nothing")
		}
	}
	if got, err := next.Look(flow4); err != nil || got.Origin != passed+size {
		t.Errorf("%+v, %v", got, err)
	}
	h.ns.Must(t, CleanUp)
	checkFilters(t, h.ns)
}

func hardware(name string) (index int, address [6]byte, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, address, err
	}
	return link.Attrs().Index, [6]byte(link.Attrs().HardwareAddr), nil
}

// sent is how many packets have left by an interface.
func sent(name string) (uint64, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Statistics.TxPackets, nil
}

// sender sends frames by an interface.
func sender(t testing.TB, ns *netnstest.NS, name string) func(frame []byte) {
	t.Helper()
	var fd int
	ns.Must(t, func() error {
		index, _, err := hardware(name)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index})
	})
	t.Cleanup(func() { unix.Close(fd) })
	return func(frame []byte) {
		t.Helper()
		if _, err := unix.Write(fd, frame); err != nil {
			t.Fatal(err)
		}
	}
}
