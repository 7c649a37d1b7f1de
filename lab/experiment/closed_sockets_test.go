package experiment

import (
	"encoding/binary"
	"net"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message returns the kernel's message about a closed socket, with part of its counters.
func message(t testing.TB, family uint8, info []byte) []byte {
	t.Helper()
	m := inetDiagMsg{Family: family, Cookie: [2]uint32{7, 1}}
	copy(m.Source[:], net.ParseIP("10.0.0.1").To4())
	copy(m.Destination[:], net.ParseIP("10.0.9.1").To4())
	body, err := binary.Append(nil, binary.NativeEndian, m)
	if err != nil {
		t.Fatal(err)
	}
	body = append(body, nl.NewRtAttr(diagInfo, info).Serialize()...)
	header := unix.NlMsghdr{Len: uint32(unix.NLMSG_HDRLEN + len(body)), Type: 20 /* SOCK_DIAG_BY_FAMILY */}
	out, err := binary.Append(nil, binary.NativeEndian, header)
	if err != nil {
		t.Fatal(err)
	}
	return append(out, body...)
}

func counters(acked, received uint64, again uint32) []byte {
	info := unix.TCPInfo{Bytes_acked: acked, Bytes_received: received, Total_retrans: again}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))...)
}

func TestParseClosedSocketies(t *testing.T) {
	whole := counters(1000, 50000, 3)
	found, err := parseClosedSockets(append(message(t, unix.AF_INET, whole), message(t, unix.AF_INET6, whole[:120])...))
	if err != nil || len(found) != 2 {
		t.Fatalf("%d, %v", len(found), err)
	}
	one := found[0]
	if one.info.Bytes_acked != 1000 || one.info.Bytes_received != 50000 || one.info.Total_retrans != 3 {
		t.Errorf("%+v", one.info)
	}
	if one.id.Source.String() != "10.0.0.1" || one.id.Destination.String() != "10.0.9.1" || cookieOf(one.id) != 1<<32|7 {
		t.Errorf("%+v", one.id)
	}
	if old := found[1]; old.info.Total_retrans != 3 || old.info.Bytes_received != 0 || len(old.id.Source) != net.IPv6len {
		t.Errorf("an older kernel's: %+v", old)
	}
	for _, bad := range [][]byte{{1, 2, 3}, message(t, unix.AF_INET, nil)[:40]} {
		if found, err := parseClosedSockets(bad); err == nil && len(found) > 0 {
			t.Errorf("took %v for %+v", bad, found)
		}
	}
}

func FuzzParseClosedSocketies(f *testing.F) {
	f.Add(message(f, unix.AF_INET, counters(1, 2, 3)))
	f.Add(message(f, unix.AF_INET6, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, _ := parseClosedSockets(data)
		for _, one := range found {
			if n := len(one.id.Source); n != net.IPv4len && n != net.IPv6len {
				t.Errorf("an address of %d bytes", n)
			}
		}
	})
}

// What a socket had carried stays, whatever its closedSocket says.
func TestAtLeast(t *testing.T) {
	seen := socketCounters{path: "direct", bytes: 1000, retransmitted: 3}
	if got := seen.atLeast(socketCounters{path: "direct"}); got != seen {
		t.Errorf("an closedSocket of zeros makes it %+v", got)
	}
	if got, want := seen.atLeast(socketCounters{"direct", 1500, 4}), (socketCounters{"direct", 1500, 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
