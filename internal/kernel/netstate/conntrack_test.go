package netstate

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

const (
	testMark  = 0xdc01_0007
	otherMark = 0xdc01_0008
	testTable = `table inet t {
	chain c {
		type filter hook prerouting priority 0
		tcp dport 1001 ct mark set 0xdc010007
		tcp dport 1002 ct mark set 0xdc010008
		tcp dport 1003 ct mark set 0x00010007
		udp dport 1001 ct mark set 0xdc010007
	}
}`
)

var ours = MarkMatch{Value: 0xdc01_0000, Mask: 0xffff_0000}

// connTracked is a host that tracks connections to it and marks them by their ports.
func connTracked(t *testing.T) (client, host *netnstest.NS) {
	client, host = twoHosts(t)
	host.Must(t, func() error {
		return errors.Join(loadConntrack(), SetSysctl("net/netfilter/nf_conntrack_acct", "1"))
	})
	file := t.TempDir() + "/t.nft"
	if err := os.WriteFile(file, []byte(testTable), 0o600); err != nil {
		t.Fatal(err)
	}
	host.Output(t, "nft", "-f", file)
	for _, address := range []string{"10.1.0.2:1001", "10.1.0.2:1002", "10.1.0.2:1003", "10.1.0.2:1004", "[fd01::2]:1001"} {
		netnstest.Serve(t, host.Listen(t, address), func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	}
	return client, host
}

func dial(t *testing.T, ns *netnstest.NS, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := ns.Dial(ctx, netip.MustParseAddrPort(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFlowsOfTheKernel(t *testing.T) {
	client, host := connTracked(t)
	var ct *Conntrack
	var events *FlowEvents
	host.Must(t, func() (err error) {
		if events, err = SubscribeFlows(ours); err == nil {
			ct, err = OpenConntrack()
		}
		return err
	})
	defer ct.Close()
	received := make(chan FlowEvent, 100)
	ended := make(chan error, 1)
	go func() {
		for {
			list, err := events.Receive()
			if err != nil {
				ended <- err
				return
			}
			for _, e := range list {
				received <- e
			}
		}
	}()
	next := func() FlowEvent {
		t.Helper()
		select {
		case e := <-received:
			return e
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
			return FlowEvent{}
		}
	}

	var want []Tuple
	for _, address := range []string{"10.1.0.2:1004", "10.1.0.2:1003", "10.1.0.2:1001", "[fd01::2]:1001", "10.1.0.2:1002"} {
		c := dial(t, client, address)
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if tuple := (Tuple{Src: local(c), Dst: netip.MustParseAddrPort(address)}); tuple.Dst.Port() <= 1002 {
			want = append(want, tuple)
			e := next()
			if e.Closed || e.Origin != tuple || e.Reply != (Tuple{Src: tuple.Dst, Dst: tuple.Src}) || e.Mark&ours.Mask != ours.Value {
				t.Errorf("event %+v, want the beginning of %+v", e, tuple)
			}
			if e := next(); e.Closed || !e.Established || e.Origin != tuple {
				t.Errorf("event %+v, want that %+v is established", e, tuple)
			}
		}
	}

	list := func(match MarkMatch) map[Tuple]Flow {
		t.Helper()
		found := make(map[Tuple]Flow)
		if err := ct.Flows(match, func(f Flow) { found[f.Origin] = f }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	found := list(ours)
	if len(found) != len(want) {
		t.Errorf("%d flows: %+v", len(found), found)
	}
	for _, tuple := range want {
		if f := found[tuple]; f.BytesOrigin < 1000 || f.BytesReply == 0 || !f.Established {
			t.Errorf("%+v: %+v", tuple, f)
		}
	}
	one := MarkMatch{Value: testMark, Mask: ^uint32(0)}
	if found := list(one); len(found) != 2 {
		t.Errorf("of one mark: %+v", found)
	}

	// Deleting takes those of the mark, in both families, and no others.
	if err := ct.Delete(one); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if e := next(); !e.Closed || e.Mark != testMark || e.BytesOrigin < 1000 {
			t.Errorf("event %+v, want an end", e)
		}
	}
	if found := list(ours); len(found) != 1 {
		t.Errorf("after deleting: %+v", found)
	}
	if found := list(MarkMatch{}); len(found) < 3 { // and the unmarked ones
		t.Errorf("all: %+v", found)
	}
	if err := ct.Delete(one); err != nil {
		t.Errorf("deleting none: %v", err)
	}
	if err := ct.Delete(MarkMatch{}); err == nil {
		t.Error("deleted everybody's")
	}
	if err := events.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; errors.Is(err, ErrEventsLost) {
		t.Errorf("closing looks like %v", err)
	}
}

// Single entries are deleted, in both families, and no others of the same mark.
func TestDeleteEachOfTheKernel(t *testing.T) {
	client, host := connTracked(t)
	var ct *Conntrack
	host.Must(t, func() (err error) { ct, err = OpenConntrack(); return err })
	defer ct.Close()
	var open []Tuple
	for _, address := range []string{"10.1.0.2:1001", "[fd01::2]:1001", "10.1.0.2:1001"} {
		open = append(open, Tuple{Src: local(dial(t, client, address)), Dst: netip.MustParseAddrPort(address)})
	}
	remove := func(which func(Flow) bool) int {
		t.Helper()
		n, err := ct.DeleteEach(ours, which)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, tuple := range open[:2] {
		is := func(f Flow) bool { return f.Origin == tuple }
		if n := remove(is); n != 1 {
			t.Errorf("%+v: %d deleted", tuple, n)
		}
		if n := remove(is); n != 0 {
			t.Errorf("%+v: %d deleted again", tuple, n)
		}
	}
	var left []Tuple
	if err := ct.Flows(ours, func(f Flow) { left = append(left, f.Origin) }); err != nil || len(left) != 1 || left[0] != open[2] {
		t.Errorf("left %+v, %v", left, err)
	}
	// One that ends between the listing and its turn is no error.
	if n := remove(func(Flow) bool { return deleteOurs(host) == nil }); n != 1 {
		t.Errorf("%d deleted", n)
	}
}

func TestRelax(t *testing.T) {
	client, host := connTracked(t)
	var ct *Conntrack
	host.Must(t, func() (err error) { ct, err = OpenConntrack(); return err })
	defer ct.Close()
	for _, address := range []string{"10.1.0.2:1001", "[fd01::2]:1001"} {
		c := dial(t, client, address)
		origin := Tuple{Src: local(c), Dst: netip.MustParseAddrPort(address)}
		show := func() string { // "ipv4 2 tcp 6 TIMEOUT STATE …"
			family := map[bool]string{true: "ipv4", false: "ipv6"}[origin.Src.Addr().Is4()]
			return host.Output(t, "sh", "-c", "conntrack -L -o extended -f "+family+" 2>/dev/null")
		}
		if f, ok, err := ct.Flow(origin); err != nil || !ok || !f.Established || f.Helped || f.Origin != origin {
			t.Errorf("%v: %+v, %v, %v", address, f, ok, err)
		}
		before := show()
		if err := ct.Relax(origin, 0); err != nil {
			t.Fatal(err)
		}
		if got := show(); strings.Fields(got)[5] != "ESTABLISHED" || strings.Fields(got)[4] < "43" {
			t.Errorf("without a timeout: %s, before %s", got, before)
		}
		if err := ct.Relax(origin, 77*time.Second); err != nil {
			t.Fatal(err)
		}
		if left := strings.Fields(show())[4]; left != "77" && left != "76" {
			t.Errorf("%v: %s seconds are left", address, left)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			f, ok, err := ct.Flow(origin)
			if err != nil || !ok || time.Now().After(deadline) {
				t.Fatalf("%v: %+v, %v, %v although it is being closed", address, f, ok, err)
			}
			if !f.Established {
				break
			}
		}
		gone := Tuple{Src: origin.Dst, Dst: netip.AddrPortFrom(origin.Src.Addr(), 9)}
		if f, ok, err := ct.Flow(gone); err != nil || ok {
			t.Errorf("not there: %+v, %v", f, err)
		}
		if err := ct.Relax(gone, 0); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("not there: %v", err)
		}
	}
}

// deleteOurs deletes all of ours by another handle.
func deleteOurs(host *netnstest.NS) error {
	return host.Do(func() error {
		other, err := OpenConntrack()
		if err != nil {
			return err
		}
		return errors.Join(other.Delete(ours), other.Close())
	})
}

func local(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }

// A subscription that is not read loses events and says so; from then on none is lost.
func TestLostEventsAreReported(t *testing.T) {
	client, host := connTracked(t)
	var events *FlowEvents
	host.Must(t, func() (err error) { events, err = SubscribeFlows(ours); return err })
	defer events.Close()
	if err := shrink(events); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		dial(t, client, "10.1.0.2:1001").Close()
	}
	if _, err := events.Receive(); !errors.Is(err, ErrEventsLost) {
		t.Fatal(err)
	}
	c := dial(t, client, "10.1.0.2:1002")
	var list []FlowEvent
	for len(list) < 2 {
		more, err := events.Receive()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, more...)
	}
	for i, e := range list {
		if e.Origin.Src != local(c) || e.Mark != otherMark || e.Established != (i == 1) {
			t.Errorf("after the loss: %+v", list)
		}
	}
}

// shrink leaves the buffer room for what one connection makes.
func shrink(e *FlowEvents) error {
	raw, err := e.conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	return errors.Join(err, inner)
}

// aFlow is a DESTROY event as Linux 6.18 sent it: client 10.1.0.1:51234 to 10.1.0.2:443, sent on to
// 10.2.0.1:8443, mark 0xdc010001, 1000 and 2000 bytes.
const aFlow = "02000000" +
	"34000180" + "14000180" + "08000100" + "0a010001" + "08000200" + "0a010002" +
	"1c000280" + "05000100" + "06000000" + "06000200" + "c8220000" + "06000300" + "01bb0000" +
	"34000280" + "14000180" + "08000100" + "0a020001" + "08000200" + "0a020002" +
	"1c000280" + "05000100" + "06000000" + "06000200" + "20fb0000" + "06000300" + "c8220000" +
	"1c000980" + "0c000100" + "000000000000000a" + "0c000200" + "00000000000003e8" +
	"1c000a80" + "0c000100" + "000000000000000a" + "0c000200" + "00000000000007d0" +
	"08000800" + "dc010001" + "08000c00" + "12345678"

func TestDecodeFlow(t *testing.T) {
	b, err := hex.DecodeString(aFlow)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort
	want := Flow{
		Origin: Tuple{addr("10.1.0.1:51234"), addr("10.1.0.2:443")},
		Reply:  Tuple{addr("10.2.0.1:8443"), addr("10.2.0.2:51234")},
		Mark:   0xdc01_0001, BytesOrigin: 1000, BytesReply: 2000,
	}
	if got, ok := decodeFlow(b); !ok || got != want {
		t.Errorf("got  %+v, %v\nwant %+v", got, ok, want)
	}
	// Every shorter one is refused, or lacks only what stands at its end.
	for i := range b {
		if got, ok := decodeFlow(b[:i]); ok && (got.Origin != want.Origin || got.Reply != want.Reply) {
			t.Errorf("%d bytes: %+v", i, got)
		}
	}
	udp := append([]byte(nil), b...)
	udp[36] = 17
	if got, ok := decodeFlow(udp); ok {
		t.Errorf("UDP: %+v", got)
	}
}

func FuzzDecodeFlow(f *testing.F) {
	b, _ := hex.DecodeString(aFlow)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		flow, ok := decodeFlow(b)
		if ok && (!flow.Origin.Src.IsValid() || !flow.Reply.Dst.IsValid()) {
			t.Errorf("%x: %+v", b, flow)
		}
	})
}

func BenchmarkDecodeFlow(b *testing.B) {
	message, _ := hex.DecodeString(aFlow)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := decodeFlow(message); !ok {
			b.Fatal("not decoded")
		}
	}
}
