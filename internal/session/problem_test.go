package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Problems that only another implementation, clock or network would cause.
func TestExplain(t *testing.T) {
	at := where{waypoint: "bob", addr: netip.MustParseAddrPort("192.0.2.7:45672")}
	alert := func(n quic.TransportErrorCode) error { return &quic.TransportError{Remote: true, ErrorCode: 0x100 + n} }
	closed := func(c quic.ApplicationErrorCode) error {
		return &quic.ApplicationError{Remote: true, ErrorCode: c, ErrorMessage: "\x1b[2J"}
	}
	for _, test := range []struct {
		err  error
		code ProblemCode
		word string
	}{
		{alert(45), RefusedUs, "clocks"},
		{alert(48), OtherCA, "another collective"},
		{alert(44), RefusedUs, "revoked"},
		{alert(42), RefusedUs, "dcol ca issue"},
		{alert(116), RefusedUs, "dcol ca issue"},
		{alert(120), OtherVersion, "update"},
		{alert(80), Nonsense, "45672"},
		{&quic.TransportError{Remote: true, ErrorCode: quic.ConnectionRefused}, Stopping, "overloaded"},
		{&quic.TransportError{Remote: true, ErrorCode: quic.ProtocolViolation, ErrorMessage: "\x1b[2J\n"}, Nonsense, "check that a dcol waypoint listens"},
		{&quic.TransportError{ErrorCode: quic.FrameEncodingError}, Nonsense, "cannot be decoded"},
		{&quic.VersionNegotiationError{}, OtherVersion, "QUIC"},
		{&quic.StatelessResetError{}, Restarted, "restarted"},
		{&quic.IdleTimeoutError{}, NoAnswer, "did not answer on 192.0.2.7:45672/udp: is its agent running, does a firewall block UDP 45672?"},
		{context.DeadlineExceeded, NoAnswer, "firewall"},
		{fmt.Errorf("read: %w", wire.ErrFraming), Nonsense, "cannot be decoded"},
		{&net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", syscall.EPERM)}, NoRoute, "operation not permitted"},
		{closed(closeStopping), Stopping, "was stopped"},
		{closed(closeRevoked), Revoked, "our certificate"},
		{closed(closeExpired), OwnIdentity, "clock"},
		{closed(closeNewer), Displaced, "use this certificate"},
		{closed(closeVersion), OtherVersion, "update"},
		{closed(closeNotMember), RefusedUs, "authority"},
		{closed(closeUnattested), Unattested, "compare the clocks"},
		{closed(closeSlow), Lost, "did not hear from us"},
		{closed(4711), Nonsense, "code 4711"},
		{net.ErrClosed, Lost, "ended"},
		{errors.New("something else"), OtherProblem, "something else"},
	} {
		p := explain(at, test.err)
		if p.Code != test.code || !strings.Contains(p.Error(), test.word) {
			t.Errorf("%v:\n got %s: %v\nwant %s and %q", test.err, p.Code, p, test.code, test.word)
		}
		if !errors.Is(p, test.err) {
			t.Errorf("%v: the cause is lost", test.err)
		}
		if strings.ContainsRune(p.Error(), '\x1b') {
			t.Errorf("%v: foreign text reaches the terminal: %q", test.err, p)
		}
	}
	known := &Problem{Code: OwnIdentity}
	if explain(at, fmt.Errorf("dial: %w", known)) != known {
		t.Error("a problem is explained twice")
	}
}
