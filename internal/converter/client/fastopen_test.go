package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// A message in the SYN of an MPTCP connection is answered before the handshake has ended. The answer arrives also if
// the ACK that ends the handshake comes late, and the connection remains MPTCP.
func TestMessageInSYN(t *testing.T) {
	_, at := startFastOpen(t, "519") // client and server, both without TFO's cookies
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	sealed := key.Seal(cookie.Claim{Mark: memberMark, Client: at.Addr(), Expires: time.Now().Add(time.Hour)})
	for i, c := range []struct{ message, want rfc8803.Message }{
		{rfc8803.Message{Info: true}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.NotAuthorized}}},
		{rfc8803.Message{Info: true, Cookie: sealed}, rfc8803.Message{Supported: &rfc8803.Supported{Kinds: []byte{rfc8803.KindMPTCP}}}},
		{rfc8803.Message{Connect: &rfc8803.Connect{Server: to}, Cookie: sealed}, rfc8803.Message{ExtendedHeader: []byte{}}},
	} {
		// The client's first ACK is lost, and sent again when the server repeats its SYN+ACK.
		table := fmt.Sprintf("late%d", i)
		nft(t, fmt.Sprintf(`table inet %s {
			chain out { type filter hook output priority 0;
				ip daddr %s tcp dport %d tcp flags == ack quota until 110 bytes drop
			}
		}`, table, at.Addr(), at.Port()), table)
		message, err := c.message.Append(nil)
		want, err2 := c.want.Append(nil)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		answer, mptcp := askInSYN(t, at, message)
		if !bytes.Equal(answer, want) || !mptcp {
			t.Errorf("%x is answered with %x, want %x; MPTCP %v", message, answer, want, mptcp)
		}
	}
}

// startFastOpen runs a converter that takes messages in SYNs, with a value of the sysctl tcp_fastopen.
func startFastOpen(t *testing.T, value string) (*engine.Engine, netip.AddrPort) {
	t.Helper()
	needsNamespace(t)
	setting := sysctl("tcp_fastopen")
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setting, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(setting, before, 0) })
	command(t, "ip", "tcp_metrics", "flush") // the cookies of the tests before
	l := enginetest.Listen(t, converter, true)
	enginetest.TakeDataInSYN(t, l)
	return enginetest.StartAt(t, server.New(key), l)
}

func sysctl(name string) string { return "/proc/sys/net/ipv4/" + name }

func command(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
}

// fastOpens are the kernel's counters of SYNs with TCP Fast Open.
type fastOpens struct {
	cookies int // that were asked for
	acked   int // SYNs whose data was acknowledged
	failed  int // SYNs whose data was not
}

// countFastOpens returns what has happened in this network namespace since before.
func countFastOpens(t *testing.T, before fastOpens) fastOpens {
	t.Helper()
	text, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	counters := make(map[string]int)
	lines := strings.Split(string(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		values := strings.Fields(lines[i+1])
		for j, name := range strings.Fields(lines[i]) {
			counters[name], _ = strconv.Atoi(values[j])
		}
	}
	return fastOpens{
		cookies: counters["TCPFastOpenCookieReqd"] - before.cookies,
		acked:   counters["TCPFastOpenActive"] - before.acked,
		failed:  counters["TCPFastOpenActiveFail"] - before.failed,
	}
}

// fastMember is like member, with messages in SYNs.
func fastMember(t *testing.T, converters ...netip.AddrPort) *Client {
	c := member(t, choice.Always, converters...)
	c.Update(func(c *choice.Choice) { c.SetPolicy(choice.Policy{Mode: choice.Always, FastOpen: true}) })
	return c
}

// isProven reports whether all connections to a converter may have their message in the SYN.
func isProven(c *Client, conv, to netip.AddrPort) bool {
	is := true
	for range 2 {
		c.Update(func(x *choice.Choice) {
			is = is && x.TryFastOpen(sourceTo(conv, 0), conv, to, time.Now())
		})
	}
	return is
}

// If the policy has no FastOpen, no SYN asks for a cookie or has data. Otherwise the first connection asks for a
// cookie, and the next one has its message in the SYN. That proves the path.
func TestFastOpen(t *testing.T) {
	conv, convAt := startFastOpen(t, "3")
	for _, addr := range []string{server4, server6} {
		to := enginetest.Serve(t, addr, false, enginetest.Echo)
		for _, c := range []struct {
			client *Client
			want   []fastOpens
			proven bool
		}{
			{member(t, choice.Always, convAt), []fastOpens{{}, {}}, false},
			{fastMember(t, convAt), []fastOpens{{cookies: 1}, {acked: 1}, {acked: 1}}, true},
		} {
			command(t, "ip", "tcp_metrics", "flush")
			relay := startAsked(t, c.client)
			for i, want := range c.want {
				before, accepted := countFastOpens(t, fastOpens{}), conv.Counters().Accepted
				enginetest.Exchange(t, relay.dial(t, to), 100<<10)
				if got := countFastOpens(t, before); got != want {
					t.Errorf("%v, connection %d: %+v, want %+v", to, i+1, got, want)
				}
				if n := conv.Counters().Accepted - accepted; n != 1 {
					t.Errorf("%v, connection %d: %d connections to the converter", to, i+1, n)
				}
			}
			if got := isProven(c.client, convAt, to); got != c.proven {
				t.Errorf("proven: %v, want %v", got, c.proven)
			}
		}
	}
}

// If the message is in the SYN, the program's first bytes follow right after it. They are not in the SYN, because that
// may arrive twice.
func TestFastOpenEarly(t *testing.T) {
	_, convAt := startFastOpen(t, "3")
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	_, at := enginetest.StartAt(t, fastMember(t, convAt).SOCKS(), enginetest.Listen(t, here, false))
	nft(t, `table inet large {
		chain in { type filter hook input priority 0; tcp flags & (syn|ack) == syn meta length > 200 drop
		}
	}`, "large")
	said := bytes.Repeat([]byte("request "), 250)
	for _, want := range []fastOpens{{cookies: 1}, {acked: 1}} {
		before := countFastOpens(t, fastOpens{})
		c := enginetest.Dial(t, at, false)
		request := append([]byte{5, 1, 0, 5, 1, 0, 1}, to.Addr().AsSlice()...)
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(request, to.Port()), said...))
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); err != nil || !bytes.HasSuffix(b, said) {
			t.Errorf("%d bytes came back, %v", len(b), err)
		}
		if got := countFastOpens(t, before); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// A server that speaks first is heard, also if the ACK that ends the handshake with the converter comes late.
func TestFastOpenLateACK(t *testing.T) {
	_, convAt := startFastOpen(t, "3")
	to := enginetest.Serve(t, server4, false, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 ready") })
	relay := startAsked(t, fastMember(t, convAt))
	if b, err := io.ReadAll(relay.dial(t, to)); err != nil || string(b) != "220 ready" {
		t.Fatalf("%q, %v", b, err)
	}
	nft(t, fmt.Sprintf(`table inet late {
		chain out { type filter hook output priority 0;
			ip daddr %s tcp dport %d tcp flags == ack quota until 110 bytes drop
		}
	}`, convAt.Addr(), convAt.Port()), "late")
	before := countFastOpens(t, fastOpens{})
	if b, err := io.ReadAll(relay.dial(t, to)); err != nil || string(b) != "220 ready" {
		t.Errorf("%q, %v", b, err)
	}
	if got, want := countFastOpens(t, before), (fastOpens{acked: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// If the data in a SYN is not acknowledged, because the cookie is outdated or something on the path does not let it
// pass, the connection is made again without it, over MPTCP. Then the path is not used for messages in SYNs.
func TestFastOpenFails(t *testing.T) {
	spoilSYNs := func(verdict string) func(t *testing.T, convAt netip.AddrPort) {
		return func(t *testing.T, convAt netip.AddrPort) {
			nft(t, fmt.Sprintf(`table inet spoil {
				chain in { type filter hook input priority 0; tcp dport %d tcp flags & (syn|ack) == syn meta length > 84 %s
				}
			}`, convAt.Port(), verdict), "spoil")
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, convAt netip.AddrPort)
		dials int64 // that reach the converter
	}{
		"outdated cookie": {func(t *testing.T, _ netip.AddrPort) {
			if err := os.WriteFile(sysctl("tcp_fastopen_key"), []byte("11111111-22222222-33333333-44444444"), 0); err != nil {
				t.Fatal(err)
			}
		}, 2},
		"dropped": {spoilSYNs("drop"), 2}, // Linux sends the SYN again without data
		"refused": {spoilSYNs("reject with tcp reset"), 1},
		"cookie requests dropped": {func(t *testing.T, convAt netip.AddrPort) {
			command(t, "ip", "tcp_metrics", "flush")
			nft(t, fmt.Sprintf(`table inet spoil {
				chain in { type filter hook input priority 0; tcp dport %d tcp flags & (syn|ack) == syn tcp option 34 exists drop
				}
			}`, convAt.Port()), "spoil")
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			conv, convAt := startFastOpen(t, "3")
			to := enginetest.Serve(t, server4, false, enginetest.Echo)
			client := fastMember(t, convAt)
			relay := startAsked(t, client)
			enginetest.Exchange(t, relay.dial(t, to), 1000)
			c.spoil(t, convAt)
			for i, dials := range []int64{c.dials, 1} {
				before, accepted := countFastOpens(t, fastOpens{}), conv.Counters().Accepted
				enginetest.Exchange(t, relay.dial(t, to), 1000)
				if n := conv.Counters().Accepted - accepted; n != dials {
					t.Errorf("%d: %d connections reached the converter, want %d", i, n, dials)
				}
				if got := countFastOpens(t, before); got.acked > 0 || i > 0 && got.failed > 0 {
					t.Errorf("%d: %+v", i, got)
				}
				if client.MayFastOpen(choice.Who{}, convAt, to) {
					t.Errorf("%d: the path is not left alone", i)
				}
				if len(client.Choose(choice.Who{}, to)) != 1 {
					t.Errorf("%d: the converter is blamed", i)
				}
			}
		})
	}
}

// A firewall can drop all packets of a connection whose SYN had data, including Linux' second SYN. The converter then
// seems to be down. The path is not used for messages in SYNs, so that the converter can be used after its pause.
func TestFastOpenUnanswered(t *testing.T) {
	conv, convAt := startFastOpen(t, "3")
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	client := fastMember(t, convAt)
	relay := startAsked(t, client)
	enginetest.Exchange(t, relay.dial(t, to), 1000)
	nft(t, fmt.Sprintf(`table inet spoil {
		set ended { type inet_service; flags dynamic; size 100; }
		chain in { type filter hook input priority 0; tcp dport != %d accept
			tcp flags & (syn|ack) == syn meta length > 84 add @ended { tcp sport }
			tcp sport @ended drop
		}
	}`, convAt.Port()), "spoil")
	enginetest.Exchange(t, relay.dial(t, to), 1000)
	if client.MayFastOpen(choice.Who{}, convAt, to) {
		t.Error("the path is not left alone")
	}
	client.Update(func(c *choice.Choice) { c.Carried(convAt, to, time.Millisecond, 0, time.Now()) }) // as if the pause were over
	accepted := conv.Counters().Accepted
	enginetest.Exchange(t, relay.dial(t, to), 1000)
	if n := conv.Counters().Accepted - accepted; n != 1 {
		t.Errorf("after that, %d connections reached the converter", n)
	}
}

// What follows the SYN's data decides, too: a converter that is silent then, or closes the connection, may have lost track
// of it because of that.
func TestFastOpenOutcomes(t *testing.T) {
	needsNamespace(t)
	conv, to := netip.AddrPortFrom(netip.MustParseAddr(converter), 5124), netip.AddrPortFrom(netip.MustParseAddr(server4), 80)
	refused, err := rfc8803.Message{Error: rfc8803.ErrorOf(unix.ECONNREFUSED, to.Addr())}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		result      engine.Result
		says        []byte
		may, proven bool
	}{
		"answered":            {engine.Result{Connected: true, FastOpen: engine.FastOpenAcked}, nil, true, true},
		"answered with error": {engine.Result{Connected: true, FastOpen: engine.FastOpenAcked, Errno: unix.ECONNREFUSED}, refused, true, true},
		"silent":              {engine.Result{Connected: true, FastOpen: engine.FastOpenAcked, Errno: unix.ETIMEDOUT}, nil, false, false},
		"closed":              {engine.Result{Connected: true, FastOpen: engine.FastOpenAcked, Errno: unix.ECONNRESET}, nil, false, false},
		"failed":              {engine.Result{Connected: true, FastOpen: engine.FastOpenFailed}, nil, false, false},
		"down":                {engine.Result{Errno: unix.ECONNREFUSED}, nil, true, false},
		"unanswered":          {engine.Result{Errno: unix.ETIMEDOUT, FastOpen: engine.FastOpenUnanswered}, nil, false, false},
		"asked for a cookie":  {engine.Result{Connected: true}, nil, true, false},
	} {
		client := fastMember(t, conv)
		a, dial := client.begin(choice.Who{}, to)
		if !dial.FastOpen || client.MayFastOpen(choice.Who{}, conv, to) {
			t.Errorf("%s: the first connection tries: %v, another one, too: %v", name, dial.FastOpen, client.MayFastOpen(choice.Who{}, conv, to))
		}
		if c.says != nil {
			_, _, _ = dial.Await(c.says)
		}
		a.dialled(c.result)
		if may := client.MayFastOpen(choice.Who{}, conv, to); may != c.may {
			t.Errorf("%s: the next one may: %v", name, may)
		}
		if proven := isProven(client, conv, to); proven != c.proven {
			t.Errorf("%s: proven: %v", name, proven)
		}
	}
}

// If a SYN with a message is sent again after its connection has ended, the converter connects to the server once. That
// connection ends without a byte, because the client's host resets what it has not asked for.
func TestReplayedSYN(t *testing.T) {
	conv, convAt := startFastOpen(t, "3")
	heard := make(chan int, 9)
	to := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		n, _ := c.Read(make([]byte, 100))
		heard <- n
		_, _ = c.Read(make([]byte, 1))
	})
	relay := startAsked(t, fastMember(t, convAt))
	var syn []byte
	for range 2 {
		next := captureSYN(t, convAt)
		c := relay.dial(t, to)
		_, _ = c.Write([]byte("request"))
		if n := <-heard; n != len("request") {
			t.Fatalf("%d bytes reached the server", n)
		}
		syn = next()
		_ = c.SetLinger(0) // so that no socket waits for what the network has left
		c.Close()
		enginetest.Eventually(t, "the connection ends", func() bool { return conv.Counters().Pairs+relay.relay.Counters().Pairs == 0 })
	}
	// On lo, the reset would arrive before the converter has read the message. The next one comes when Linux repeats the
	// SYN+ACK, a second later.
	nft(t, fmt.Sprintf(`table inet resets {
		chain out { type filter hook output priority 0; tcp dport %d tcp flags & rst == rst quota until 50 bytes drop
		}
	}`, convAt.Port()), "resets")
	before := conv.Counters().Accepted
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	if err := unix.Sendto(raw, withChecksum(syn), 0, &unix.SockaddrInet4{Addr: convAt.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-heard:
		if n != 0 {
			t.Errorf("%d bytes reached the server again", n)
		}
	case <-time.After(10 * time.Second):
		t.Error("the converter does not connect: the SYN was not repeated as it was")
	}
	if n := conv.Counters().Accepted - before; n != 1 {
		t.Errorf("%d connections at the converter", n)
	}
	enginetest.Eventually(t, "the repeated connection ends", func() bool { return conv.Counters().Pairs == 0 })
}

// captureSYN returns a function that returns the first SYN which was sent to an address since then, with its IP header.
func captureSYN(t *testing.T, to netip.AddrPort) func() []byte {
	t.Helper()
	const protocol = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8 // big-endian
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		t.Fatal(err)
	}
	patience := unix.NsecToTimeval(int64(10 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	return func() []byte {
		defer unix.Close(fd)
		for {
			b := make([]byte, 1<<16)
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				t.Fatalf("no SYN: %v", err)
			}
			const syn, ack = 0x02, 0x10
			if b = b[:n]; n >= 40 && b[9] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(b[22:]) == to.Port() && b[33]&(syn|ack) == syn {
				return b
			}
		}
	}
}

// withChecksum completes the checksum of a TCP segment in an IPv4 packet without options, which the kernel leaves out on lo.
func withChecksum(packet []byte) []byte {
	tcp := packet[20:]
	binary.BigEndian.PutUint16(tcp[16:], 0)
	sum := uint32(unix.IPPROTO_TCP + len(tcp))
	for covered := packet[12:]; len(covered) > 0; covered = covered[2:] { // addresses and segment
		if len(covered) == 1 {
			sum += uint32(covered[0]) << 8
			break
		}
		sum += uint32(binary.BigEndian.Uint16(covered))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return packet
}

// askInSYN sends a message in the SYN of an MPTCP connection, and returns what comes back first.
func askInSYN(t *testing.T, to netip.AddrPort, message []byte) (answer []byte, mptcp bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(20 * time.Second))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.Sendto(fd, message, unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
	)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, rfc8803.MaxLen)
	n, err := unix.Read(fd, b)
	if err != nil {
		t.Errorf("no answer: %v", err)
	}
	return b[:max(n, 0)], sockinfo.IsMultipath(fd)
}
