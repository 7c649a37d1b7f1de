package mptcpify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Addresses of the tests, all on lo.
const (
	serverAddr     = "203.0.113.5"
	serverAddr6    = "2001:db8::5"
	converterAddr  = "192.0.2.1"
	converterAddr6 = "2001:db8:1::1"
	// directPort is the port of servers that the relay wants to be reached directly.
	directPort = 81
	// plainPort is the port of servers that the relay knows to speak no MPTCP, and has no converter for.
	plainPort = 82
)

const testCookie = "a cookie of 24 bytes .."

// sparedProgram begins the name of executables that the relay excludes.
const sparedProgram = "spared"

// fake is a relay and a converter in their own process, which prints what it does.
type fake struct {
	mode     string
	relay    [2]netip.AddrPort
	mu       sync.Mutex
	expected ask.Expectations
	gone     bool                    // the first of two converters has failed
	callers  map[netip.AddrPort]bool // of the converter
}

// Modes of the fake.
const (
	modeWorks     = "works"
	modeDead      = "dead"       // the converter's port is closed
	modeFirstDead = "first dead" // there are two converters, and the first one's port is closed
	modeSilent    = "silent"     // it accepts and does not answer
	modeCloses    = "closes"     // it accepts and closes
	modeMalformed = "malformed"  // it answers nonsense
	modeRefuses   = "refuses"    // it does not serve this host
	modeBusy      = "busy"       // it lacks resources
	modeSplits    = "splits"     // its answers come in two parts
	modeOdd       = "odd"        // its answers have malformed TCP options
	modeDirect    = "direct"     // the relay wants nothing converted
	modePlain     = "plain"      // the relay wants nothing converted, and knows all servers to speak no MPTCP
	modeForgets   = "forgets"    // the relay refuses announced connections
	modeTunnelled = "tunnelled"  // only the relay may connect to the converter, and answers as a converter does
	modeEarlier   = "earlier"    // as before, but the relay is of an older version, and does not answer
	modeFast      = "fast"       // the message may be in the SYN
	modeFour      = "four"       // the converter has no address of IPv6
	modeOther     = "other"      // the converter has no address of IPv4
)

func fakeRelay(socket, mode string) int {
	f := &fake{mode: mode, callers: make(map[netip.AddrPort]bool)}
	if err := f.run(socket); err != nil {
		fmt.Fprintln(os.Stderr, "fake relay:", err)
		return 1
	}
	return 0
}

func (f *fake) run(socket string) error {
	for i, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := listenMPTCP(addr)
		if err != nil {
			return err
		}
		f.relay[i] = l.Addr().(*net.TCPAddr).AddrPort()
		go accept(l, f.relayed)
	}
	if f.mode != modeDead && f.mode != modePlain {
		for _, addr := range []string{converterAddr, converterAddr6} {
			l, err := listenMPTCP(netip.AddrPortFrom(netip.MustParseAddr(addr), rfc8803.Port).String())
			if err != nil {
				return err
			}
			go accept(l, f.converted)
		}
	}
	l, err := ask.Listen(socket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return ask.Serve(context.Background(), l, f)
}

func listenMPTCP(addr string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	config.Control = func(_, _ string, c syscall.RawConn) error { // the sysctl decides, too
		var bad error
		err := c.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 100) })
		return errors.Join(err, bad)
	}
	return config.Listen(context.Background(), "tcp", addr)
}

func accept(l net.Listener, serve func(*net.TCPConn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "fake relay:", err)
			os.Exit(1)
		}
		go serve(conn.(*net.TCPConn))
	}
}

func (f *fake) Ask(_ ask.Process, server netip.AddrPort) ask.Answer {
	fmt.Println("asked", server)
	if f.mode == modeDirect || server.Port() == directPort {
		return ask.Answer{KeepFor: time.Minute}
	}
	if f.mode == modePlain || server.Port() == plainPort {
		return ask.Answer{KeepFor: time.Minute, Plain: true}
	}
	converter := netip.MustParseAddr(converterAddr)
	if server.Addr().Is6() && f.mode != modeFour || f.mode == modeOther {
		converter = netip.MustParseAddr(converterAddr6)
	}
	port := uint16(rfc8803.Port)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mode == modeFirstDead && !f.gone {
		port++
	}
	switch convert := (&ask.Convert{Relay4: f.relay[0], Relay6: f.relay[1], Cookie: []byte(testCookie)}); f.mode {
	case modeTunnelled:
		convert.Converter = f.relay[0]
		if server.Addr().Is6() {
			convert.Converter = f.relay[1]
		}
		return ask.Answer{Convert: convert}
	case modeEarlier:
		return ask.Answer{Convert: convert}
	}
	return ask.Answer{Convert: &ask.Convert{
		Converter: netip.AddrPortFrom(converter, port), Cookie: []byte(testCookie),
		FastOpen: f.mode == modeFast, Relay4: f.relay[0], Relay6: f.relay[1],
	}}
}

func (f *fake) Expect(p ask.Process, local, server netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mode != modeForgets && f.expected.Add(p, local, server, time.Now())
}

func (f *fake) Excludes(_ ask.Process, program string) bool {
	return strings.HasPrefix(filepath.Base(program), sparedProgram)
}

func (f *fake) Learned(_ ask.Process, server netip.AddrPort, mptcp bool) {
	fmt.Println("learned", server, mptcp)
}

func (f *fake) Suspect(_ ask.Process, converter netip.AddrPort) { fmt.Println("suspect", converter) }

func (f *fake) Unserved(_ ask.Process, converter, server netip.AddrPort) {
	fmt.Println("unserved", server, converter)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
}

func (f *fake) Refused(_ ask.Process, converter, server netip.AddrPort) {
	fmt.Println("refused", server, converter)
}

func (f *fake) Carried(_ ask.Process, local, converter, server netip.AddrPort, handshake, answer time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.callers[local] {
		fmt.Println("carried, but not the converter's caller", local)
		return
	}
	fmt.Println("carried", server, converter, handshake > 0 && answer > 0)
}

func (f *fake) FastOpened(_ ask.Process, converter netip.AddrPort, how ask.FastOpen) {
	fmt.Println("fast open", converter, how)
}

// relayed serves a connection of a program that does not wait.
func (f *fake) relayed(conn *net.TCPConn) {
	defer conn.Close()
	f.mu.Lock()
	server, _, ok := f.expected.Take(conn.RemoteAddr().(*net.TCPAddr).AddrPort(), time.Now())
	f.mu.Unlock()
	if !ok && f.mode == modeTunnelled {
		f.converted(conn)
		return
	}
	if !ok {
		fmt.Println("stranger at the relay")
		return
	}
	fmt.Println("relayed", server)
	toServer, err := net.Dial("tcp", server.String())
	if err != nil {
		_ = conn.SetLinger(0)
		return
	}
	join(conn, toServer.(*net.TCPConn))
}

// converted serves a connection to the converter.
func (f *fake) converted(conn *net.TCPConn) {
	defer conn.Close()
	f.mu.Lock()
	f.callers[unmapped(conn.RemoteAddr().(*net.TCPAddr).AddrPort())] = true
	f.mu.Unlock()
	switch f.mode {
	case modeSilent:
		fmt.Println("silent")
		_, _ = io.Copy(io.Discard, conn)
		return
	case modeCloses:
		return
	case modeMalformed:
		_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		return
	}
	header := make([]byte, rfc8803.MaxLen)
	if _, err := io.ReadFull(conn, header[:rfc8803.HeaderLen]); err != nil {
		return
	}
	n, err := rfc8803.Len(header)
	if err == nil {
		_, err = io.ReadFull(conn, header[rfc8803.HeaderLen:n])
	}
	var m rfc8803.Message
	if err == nil {
		m, _, err = rfc8803.Decode(header[:n])
	}
	multipath, mptcpErr := conn.MultipathTCP()
	fmt.Println("converted", m.Connect.Server, string(m.Cookie[:len(testCookie)]) == testCookie, multipath, errors.Join(err, mptcpErr))
	if f.mode == modeRefuses {
		f.answer(conn, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.NotAuthorized}})
		return
	}
	if f.mode == modeBusy {
		f.answer(conn, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.ResourceExceeded}})
		return
	}
	toServer, err := net.Dial("tcp", m.Connect.Server.String())
	if err != nil {
		errno := syscall.ETIMEDOUT
		errors.As(err, &errno)
		f.answer(conn, rfc8803.Message{Error: rfc8803.ErrorOf(errno, m.Connect.Server.Addr())})
		return
	}
	// MSS and MP_CAPABLE, as a server of MPTCP sends them.
	options := binary.BigEndian.AppendUint16([]byte{2, 4}, 1460)
	options = append(options, 30, 12, 0x01, 0x01, 1, 2, 3, 4, 5, 6, 7, 8)
	if f.mode == modeOdd {
		options = append(options, 2)
	}
	f.answer(conn, rfc8803.Message{ExtendedHeader: options})
	join(conn, toServer.(*net.TCPConn))
}

func (f *fake) answer(conn *net.TCPConn, m rfc8803.Message) {
	b, err := m.Append(nil)
	if err != nil {
		fmt.Println("answer:", err)
		return
	}
	if f.mode == modeSplits {
		_, _ = conn.Write(b[:2])
		time.Sleep(20 * time.Millisecond)
		b = b[2:]
	}
	_, _ = conn.Write(b)
}

// join copies both ways until both are done.
func join(a, b *net.TCPConn) {
	defer b.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.Copy(a, b); errors.Is(err, syscall.ECONNRESET) {
			_ = a.SetLinger(0)
			_ = a.Close()
		}
		_ = a.CloseWrite()
	}()
	_, _ = io.Copy(b, a)
	_ = b.CloseWrite()
	<-done
}
