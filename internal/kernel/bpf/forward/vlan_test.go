package forward

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Tests of frames with a VLAN tag. The kernel takes the tag out of a frame that comes in, and keeps it
// beside it: the program's test run cannot do that, so these frames come over a wire.

// frameSocket hears and sends the frames of an interface.
type frameSocket struct{ fd int }

func (h *host) frames(t testing.TB, ns *netnstest.NS, name string) frameSocket {
	t.Helper()
	var s frameSocket
	ns.Must(t, func() error {
		index, _, err := hardware(name)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}),
			unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index}),
		)
	})
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

func (s frameSocket) send(t testing.TB, frame []byte) {
	t.Helper()
	if _, err := unix.Write(s.fd, frame); err != nil {
		t.Fatal(err)
	}
}

// next waits for a frame whose TCP data is this, and returns it and whether it has a tag.
func (s frameSocket) next(t testing.TB, payload string) (frame []byte, tagged bool) {
	t.Helper()
	for {
		b, oob := make([]byte, 2000), make([]byte, 200)
		n, oobn, _, from, err := unix.Recvmsg(s.fd, b, oob, 0)
		if err != nil {
			t.Fatalf("no frame with the data %q: %v", payload, err)
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING || !bytes.HasSuffix(b[:n], []byte(payload)) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			t.Fatalf("%d messages beside the frame, %v", len(messages), err)
		}
		// struct tpacket_auxdata begins with the status.
		status := binary.NativeEndian.Uint32(messages[0].Data)
		return b[:n], status&unix.TP_STATUS_VLAN_VALID != 0 || bytes.Equal(b[12:14], []byte{0x81, 0})
	}
}

// checkLeft waits for the frame with this data and checks that it left as a router sends it on.
func (h *host) checkLeft(t testing.TB, out frameSocket, p sample, as Tuple) {
	t.Helper()
	frame, tagged := out.next(t, string(p.payload))
	p.vlan = false
	if want := p.forwarded(as).frame(); tagged || !bytes.Equal(frame[14:], want[14:]) {
		t.Errorf("data %q: tagged %v\nframe %x\nwant  %x", p.payload, tagged, frame[14:], want[14:])
	}
}

// A tag does not leave with what is forwarded: frames of another VLAN are not this
// interface's, and those with a priority lose it.
func TestVLANTags(t *testing.T) {
	h := newHost(t)
	if err := h.Attach([]int{h.index}); err != nil {
		t.Fatal(err)
	}
	for name, flow := range map[string]Flow{"IPv4": flow4, "IPv6": flow6} {
		h.add(t, flow)
		in, out := h.frames(t, h.peer, "in"), h.frames(t, h.peer, "out")
		as := flow.Reply.reversed()
		p := h.packet(flow.Origin)
		p.vlan, p.vlanID = true, 7
		p.payload = []byte(name + " of another VLAN")
		in.send(t, p.frame())
		p.vlanID = 5 << 13
		p.payload = []byte(name + " with a priority")
		in.send(t, p.frame())
		h.checkLeft(t, out, p, as)
		want := uint64(len(p.frame()) - 18)
		p.vlan = false
		p.payload = []byte(name + " without a tag")
		in.send(t, p.frame())
		h.checkLeft(t, out, p, as)
		want += uint64(len(p.frame()) - 14)
		if got, _ := h.passed(t, flow); got.Origin != want {
			t.Errorf("%s: %d bytes forwarded, want %d: without the frame of another VLAN", name, got.Origin, want)
		}
	}
}

// The frames of a VLAN are forwarded by the VLAN's own interface, without its tag.
func TestVLANInterface(t *testing.T) {
	h := newHost(t)
	if err := h.ns.Do(func() error { return addVLAN("in", "in.7", 7) }); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no VLAN interfaces")
	} else if err != nil {
		t.Fatal(err)
	}
	index := h.indexOf(t, "in.7")
	h.ns.Output(t, "ip", "addr", "del", "10.1.0.2/24", "dev", "in")
	h.ns.Output(t, "ip", "addr", "add", "10.1.0.2/24", "dev", "in.7")
	h.ns.Output(t, "ip", "neigh", "add", "10.1.0.1", "dev", "in.7", "lladdr", "02:00:00:00:00:01", "nud", "permanent")
	if err := h.Attach([]int{h.index, index}); err != nil {
		t.Fatal(err)
	}
	h.add(t, flow4)
	in, out := h.frames(t, h.peer, "in"), h.frames(t, h.peer, "out")
	p := h.packet(flow4.Origin)
	p.vlan, p.vlanID = true, 7
	p.payload = []byte("of this VLAN")
	in.send(t, p.frame())
	h.checkLeft(t, out, p, flow4.Reply.reversed())
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if got, _ := h.passed(t, flow4); got.Origin == uint64(len(p.frame())-18) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d bytes forwarded", got.Origin)
		}
	}
	// What goes back gets the tag of its way.
	back := h.packet(flow4.Reply)
	back.payload = []byte("back to this VLAN")
	back.to = h.outMAC(t)
	if err := h.Attach([]int{h.index, index, h.indexOf(t, "out")}); err != nil {
		t.Fatal(err)
	}
	out.send(t, back.frame())
	if _, tagged := in.next(t, string(back.payload)); !tagged {
		t.Error("what goes to the VLAN has no tag")
	}
}

func addVLAN(of, name string, id int) error {
	parent, err := netlink.LinkByName(of)
	if err != nil {
		return err
	}
	link := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, VlanId: id}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func (h *host) indexOf(t testing.TB, name string) (index int) {
	t.Helper()
	h.ns.Must(t, func() (err error) { index, _, err = hardware(name); return err })
	return index
}

func (h *host) outMAC(t testing.TB) (mac [6]byte) {
	t.Helper()
	h.ns.Must(t, func() (err error) { _, mac, err = hardware("out"); return err })
	return mac
}
