package testbed

import (
	"encoding/hex"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/packet"
)

// behindRouter is two hosts and one between them.
func behindRouter(router HostSpec) Spec {
	router.Name, router.Forward = "router", true
	return Spec{
		Hosts:   []HostSpec{{Name: "left"}, router, {Name: "right"}},
		Links:   []LinkSpec{{Name: "l", A: "left", B: "router"}, {Name: "r", A: "router", B: "right"}},
		Backend: BackendVeth,
	}
}

// segments sends TCP headers of the test's own making from one host, and sees
// what arrives at another.
type segments struct {
	t            *testing.T
	send, listen int // sockets
	from, to     netip.Addr
	ip6          bool
}

const markedPort = 4242 // the source port by which ours are known

func newSegments(t *testing.T, from, to *Host, ip6 bool) *segments {
	t.Helper()
	s := &segments{t: t, from: from.Addr4(), to: to.Addr4(), ip6: ip6}
	family := unix.AF_INET
	if ip6 {
		s.from, s.to, family = from.Addr6(), to.Addr6(), unix.AF_INET6
	}
	open := func(h *Host, at netip.Addr) (fd int) {
		err := h.Do(func() (err error) {
			if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
				return err
			}
			return unix.Bind(fd, sockaddr(at))
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	s.send, s.listen = open(from, s.from), open(to, s.to)
	if err := unix.SetsockoptTimeval(s.listen, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	return s
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// inject sends a segment with flags and options, which are given in hexadecimal.
func (s *segments) inject(flags packet.Flags, options string) {
	s.t.Helper()
	b, err := hex.DecodeString(options)
	if err != nil || len(b)%4 != 0 {
		s.t.Fatalf("options %q: %v", options, err)
	}
	p := packet.Segment(netip.AddrPortFrom(s.from, markedPort), netip.AddrPortFrom(s.to, 9),
		packet.TCP{Seq: 1, Flags: flags, Window: 0xffff, Rest: b}, nil)
	if err := p.Seal(); err != nil {
		s.t.Fatal(err)
	}
	h := p.TCP.Append(nil) // the kernel adds the IP header
	if err := unix.Sendto(s.send, h, 0, sockaddr(s.to)); err != nil {
		s.t.Fatal(err)
	}
}

// hear returns the options of the next segment that arrives, in hexadecimal.
func (s *segments) hear() string {
	s.t.Helper()
	for {
		b := make([]byte, 2000)
		n, _, err := unix.Recvfrom(s.listen, b, 0)
		if err != nil {
			s.t.Fatalf("nothing arrives: %v", err)
		}
		b = b[:n]
		if s.ip6 { // which comes without its header
			b = s.withHeader(b)
		}
		p, err := packet.Parse(b)
		if err != nil || p.TCP == nil || p.TCP.SrcPort != markedPort {
			continue
		}
		if err := p.Verify(); err != nil {
			s.t.Errorf("% x: %v", b, err)
		}
		return hex.EncodeToString(p.TCP.OptionBytes())
	}
}

// withHeader puts an IPv6 header before a segment.
func (s *segments) withHeader(segment []byte) []byte {
	h := packet.IPv6{Length: uint16(len(segment)), NextHeader: packet.ProtocolTCP, Src: s.from, Dst: s.to}
	return (&packet.Packet{V6: &h, Payload: segment}).Bytes()
}

const (
	syn, ack = packet.SYN, packet.ACK

	mss      = "020405b4"
	inBand   = "fe08dc01c0000207" // kind 254
	fastOpen = "fd04f989"         // kind 253
	padding4 = "01010101"
)

func TestMiddlebox(t *testing.T) {
	n := build(t, behindRouter(HostSpec{}))
	router := n.Host("router")
	for _, ip6 := range []bool{false, true} {
		s := newSegments(t, n.Host("left"), n.Host("right"), ip6)
		for _, test := range []struct {
			middlebox Middlebox
			flags     packet.Flags
			options   string
			want      string // "" if it does not arrive
		}{
			{NoMiddlebox, syn, mss + inBand, mss + inBand},
			{StripOptions, syn, mss + inBand, mss + padding4 + padding4},
			{StripOptions, syn | ack, inBand + mss, padding4 + padding4 + mss},
			{StripOptions, syn, fastOpen + mss, padding4 + mss},
			{StripOptions, syn, inBand + fastOpen + inBand + fastOpen, strings.Repeat(padding4, 6)},
			{StripOptions, syn, strings.Repeat("fe02", 20), strings.Repeat(padding4, 10)},
			{StripOptions, ack, inBand + mss, inBand + mss},
			{StripOptions, syn, mss, mss},
			{DropOptions, syn, mss + inBand, ""},
			{DropOptions, syn | ack, fastOpen, ""},
			{DropOptions, ack, mss + inBand, mss + inBand},
			{DropOptions, syn, mss, mss},
			{NoMiddlebox, syn, inBand, inBand},
		} {
			if err := router.SetMiddlebox(test.middlebox); err != nil {
				t.Fatal(err)
			}
			s.inject(test.flags, test.options)
			const last = "0204000201010101" // what is sent behind it
			s.inject(syn, last)
			got := s.hear()
			if got == last {
				got = ""
			} else {
				s.hear()
			}
			if got != test.want {
				t.Errorf("%q, flags %#x: of %s there is %q left, want %q", test.middlebox, test.flags, test.options, got, test.want)
			}
		}
	}
}

func TestMiddleboxFromTheStart(t *testing.T) {
	n := build(t, behindRouter(HostSpec{Middlebox: StripOptions}))
	s := newSegments(t, n.Host("left"), n.Host("right"), false)
	s.inject(syn, fastOpen)
	if got := s.hear(); got != padding4 {
		t.Errorf("of the option there is %s left", got)
	}
	if err := n.Host("left").SetMiddlebox(DropOptions); err == nil || !strings.Contains(err.Error(), "left: only a host that forwards") {
		t.Errorf("a host that does not forward: %v", err)
	}
	if err := n.Host("router").SetMiddlebox("strip"); err == nil || !strings.Contains(err.Error(), `router: middlebox "strip" is unknown`) {
		t.Errorf("an unknown kind: %v", err)
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

// What the rules are in nft's words is in testdata; -update writes it.
func TestRulesInNftsWords(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft, to show the rules")
	}
	for _, test := range []struct {
		golden string
		spec   Spec
	}{
		{"strip-options.nft", behindRouter(HostSpec{Middlebox: StripOptions})},
		{"drop-options.nft", behindRouter(HostSpec{Middlebox: DropOptions})},
		{"nat.nft", home()},
		{"nat-port-restricted.nft", homeOf(PortRestricted)},
		{"nat-address-restricted.nft", homeOf(AddressRestricted)},
		{"nat-full-cone.nft", homeOf(FullCone)},
	} {
		n := build(t, test.spec)
		got := folded(run(t, n.Host("router"), "nft", "-s", "list", "ruleset") + "\n")
		want, err := os.ReadFile("testdata/" + test.golden)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			want = []byte(got)
			if err := os.WriteFile("testdata/"+test.golden, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.golden, diff)
		}
	}
}

// folded writes repeated lines once, with their number.
func folded(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		times := 1
		if last := len(out) - 1; last >= 0 {
			if before, n, ok := strings.Cut(out[last], " # times "); before == line {
				if ok {
					times, _ = strconv.Atoi(n)
				}
				times, out = times+1, out[:last]
			}
		}
		if times > 1 {
			line += " # times " + strconv.Itoa(times)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n") + "\n"
}
