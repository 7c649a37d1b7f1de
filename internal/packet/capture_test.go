package packet

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
)

// testdata/mptcp.pcap was captured with Linux 6.18, on two veth links without segmentation offload. It has four
// connections: over IPv4, with joins from both ends, a priority of backup and removed addresses; over IPv6, with
// checksums; one that ends by a fast close; and one whose join is refused.
//
// testdata/mptcp0.pcap has version 0, and was made from RFC 6824's text by analyse/analysetest. It has two connections,
// over IPv4 with checksums and over IPv6, with every option and all sizes of numbers.
const ethernet = 14

func readCapture(t testing.TB) [][]byte { return readPackets(t, "mptcp", 93) }

func readPackets(t testing.TB, name string, count int) (packets [][]byte) {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			break
		}
		packets = append(packets, b[ethernet:])
	}
	if len(packets) != count {
		t.Fatalf("%d packets", len(packets))
	}
	return packets
}

func TestCaptureIsEncodedAsItWas(t *testing.T) {
	for i, b := range readCapture(t) {
		p, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Verify(); err != nil {
			t.Errorf("packet %d: %v", i+1, err)
		}
		checkRoundTrip(t, b, p)
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		checkRoundTrip(t, b, p) // the kernel's lengths and checksums are the same as ours
	}
}

// The kernel's values are compared with those computed from keys.
func TestKeysOfCapture(t *testing.T) {
	type connection struct{ client, server Key }
	var (
		tokens   = map[uint32]connection{} // by the server's token
		now      connection
		joins    = map[uint16]connection{} // by the client's port
		nonces   = map[uint16][2]uint32{}  // by the client's port, too: the client's and the server's
		checked  = map[string]int{}
		sequence = map[uint16]uint64{} // of the first data to a port
	)
	for i, b := range readCapture(t) {
		p, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range p.TCP.Options {
			if o.Kind != KindMPTCP {
				continue
			}
			m, err := o.MPTCP()
			if err != nil {
				t.Fatal(err)
			}
			check := func(what string, got, want any) {
				checked[what]++
				if got != want {
					t.Errorf("packet %d: %s %x, want %x", i+1, what, got, want)
				}
			}
			switch m := m.(type) {
			case Capable:
				if m.Keys == 2 {
					now = connection{m.Sender, m.Receiver}
					tokens[m.Receiver.Token(1)] = now
					sequence[p.TCP.SrcPort] = m.Receiver.InitialSequence(1) + 1
				}
				if m.HasChecksum {
					check("checksum of the first data", m.Checksum, DSSChecksum(m.Sender.InitialSequence(1)+1, 1, m.Length, p.Payload))
				}
			case JoinSYN:
				c, known := tokens[m.Token]
				check("token", known, true)
				joins[p.TCP.SrcPort], nonces[p.TCP.SrcPort] = c, [2]uint32{m.Nonce}
			case JoinSYNACK:
				c, n := joins[p.TCP.DstPort], nonces[p.TCP.DstPort]
				nonces[p.TCP.DstPort] = [2]uint32{n[0], m.Nonce}
				check("HMAC of a SYN+ACK", m.HMAC, [8]byte(JoinHMAC(1, c.server, c.client, m.Nonce, n[0])))
			case JoinACK:
				c, n := joins[p.TCP.SrcPort], nonces[p.TCP.SrcPort]
				check("HMAC of an ACK", m.HMAC, [20]byte(JoinHMAC(1, c.client, c.server, n[0], n[1])))
			case AddAddr:
				if m.authenticated() {
					check("HMAC of an address", m.HMAC, m.Authenticator(now.server, now.client))
				}
			case DSS:
				if want, first := sequence[p.TCP.DstPort]; first && m.Flags&DSSMap != 0 {
					check("first sequence number", m.Sequence, want)
					delete(sequence, p.TCP.DstPort)
				}
				if m.HasChecksum {
					data := p.Payload[:min(len(p.Payload), int(m.Length))]
					check("checksum", m.Checksum, DSSChecksum(m.Sequence, m.Subflow, m.Length, data))
				}
			}
		}
	}
	for _, what := range []string{"token", "HMAC of a SYN+ACK", "HMAC of an ACK", "HMAC of an address", "first sequence number", "checksum", "checksum of the first data"} {
		if checked[what] == 0 {
			t.Errorf("no %s was checked", what)
		}
	}
}

// Values of version 0, computed by sha1sum and openssl dgst. tshark has the same token and sequence number.
func TestKeysOfVersion0(t *testing.T) {
	const key = Key(0x0102030405060708)
	if got := key.Token(0); got != 0xdd5783bc {
		t.Errorf("token %#x", got)
	}
	if got := key.InitialSequence(0); got != 0x3a95ed6e4ebb4ad5 {
		t.Errorf("sequence number %#x", got)
	}
	if got := fmt.Sprintf("%x", JoinHMAC(0, key, 0x1112131415161718, 10, 11)); got != "ab00feda643f3b81ef3d590677760a2e895cba67" {
		t.Errorf("HMAC %s", got)
	}
	echo := AddAddr{Version: 1, Address: netip.MustParseAddr("10.0.0.1")}
	if with := (AddAddr{Version: 1, Address: echo.Address, HasPort: true, Port: 1}); echo.Authenticator(1, 2) == with.Authenticator(1, 2) {
		t.Error("the port is not authenticated")
	}
}
