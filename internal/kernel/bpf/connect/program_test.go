package connect

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// The test binary is also the programs that tests start.
func TestMain(m *testing.M) {
	switch os.Getenv("CONNECT_TEST_PROGRAM") {
	case "client":
		os.Exit(clientProgram())
	case "holder":
		os.Exit(holderProgram(os.Args[1]))
	}
	os.Exit(m.Run())
}

// try is a connection that a client makes.
type try struct {
	To          netip.AddrPort
	Family      int            // 0: that of the address
	Protocol    int            // 0: TCP
	Datagram    bool           // not a stream
	NonBlocking bool           // connect() does not wait
	FastOpen    bool           // sendmsg() connects
	Mark        int            // SO_MARK
	Device      string         // SO_BINDTODEVICE
	From        netip.AddrPort // bind()
	First       netip.AddrPort // the socket is connected to this one first, which refuses
	Before      netip.AddrPort // the socket is connected to this one before, and disconnected
	Joins       bool           // waits for a second subflow
}

// outcome is the result of a try.
type outcome struct {
	Error string         // empty: none
	Peer  netip.AddrPort // by getpeername()
	Heard string         // the line that the other end sent
}

// client is a program that connects. It ends with the test.
type client struct {
	in        io.Writer
	out       *bufio.Reader
	processID uint32
}

// newClient starts a client in a namespace and a cgroup.
func newClient(t testing.TB, ns *netnstest.NS, cgroup string) *client {
	t.Helper()
	return newClientWith(t, ns, cgroup, 0)
}

// newClientWith starts a client that has namespaces of its own, too: flags of clone().
func newClientWith(t testing.TB, ns *netnstest.NS, cgroup string, flags uintptr) *client {
	t.Helper()
	c := &client{}
	c.in, c.out = start(t, ns, cgroup, flags, "client").pipes()
	if err := json.Unmarshal(c.line(t), &c.processID); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *client) line(t testing.TB) []byte {
	t.Helper()
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the client ended: %v", err)
	}
	return line
}

func (c *client) try(t testing.TB, x try) (o outcome) {
	t.Helper()
	line, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(c.line(t), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// process is a running program.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

func (p *process) pipes() (io.Writer, *bufio.Reader) { return p.in, bufio.NewReader(p.out) }

// start starts a program in a namespace, and in a cgroup unless that is "".
func start(t testing.TB, ns *netnstest.NS, cgroup string, flags uintptr, name string, arg ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", arg...)
	cmd.Env = append(os.Environ(), "CONNECT_TEST_PROGRAM="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	in, out := ns.Start(t, cmd, cgroup)
	return &process{cmd, in, out}
}

// clientProgram prints its id, and then the outcome of each try that it reads.
func clientProgram() int {
	id, err := ProcessID()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(id)
	in := json.NewDecoder(os.Stdin)
	for {
		var x try
		if err := in.Decode(&x); err != nil {
			return 0
		}
		o, err := x.make()
		if err != nil {
			o.Error = err.Error()
		}
		_ = out.Encode(o)
	}
}

func (x try) make() (o outcome, err error) {
	family, kind := x.Family, unix.SOCK_STREAM
	if family == 0 {
		if family = unix.AF_INET6; x.To.Addr().Is4() {
			family = unix.AF_INET
		}
	}
	if x.Datagram {
		kind = unix.SOCK_DGRAM
	}
	if x.NonBlocking {
		kind |= unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, x.Protocol)
	if err != nil {
		return o, err
	}
	defer unix.Close(fd)
	if err := x.prepare(fd, family); err != nil {
		return o, err
	}
	if err := x.connect(fd, sockaddr(family, x.To)); err != nil {
		return o, fmt.Errorf("connect: %w", err)
	}
	if o.Peer, err = peerOf(fd); err != nil {
		return o, fmt.Errorf("getpeername: %w", err)
	}
	if x.Joins {
		err = awaitJoin(fd)
	}
	if !x.Datagram {
		o.Heard, err = hear(fd)
	}
	return o, err
}

func (x try) prepare(fd, family int) error {
	var errs []error
	if x.Mark != 0 {
		errs = append(errs, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, x.Mark))
	}
	if x.Device != "" {
		errs = append(errs, unix.BindToDevice(fd, x.Device))
	}
	if x.From.IsValid() {
		errs = append(errs, unix.Bind(fd, sockaddr(family, x.From)))
	}
	if x.First.IsValid() {
		if err := unix.Connect(fd, sockaddr(family, x.First)); !errors.Is(err, unix.ECONNREFUSED) {
			errs = append(errs, fmt.Errorf("the first server: %w", err))
		}
	}
	if x.Before.IsValid() {
		errs = append(errs, unix.Connect(fd, sockaddr(family, x.Before)), disconnect(fd))
	}
	return errors.Join(errs...)
}

// disconnect makes a socket as it was before connect().
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	if errno != 0 {
		return fmt.Errorf("disconnect: %w", errno)
	}
	return nil
}

func (x try) connect(fd int, to unix.Sockaddr) error {
	if x.FastOpen {
		return unix.Sendmsg(fd, []byte("hello"), nil, to, unix.MSG_FASTOPEN)
	}
	err := unix.Connect(fd, to)
	if !x.NonBlocking || x.Datagram {
		return err
	}
	if !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("non-blocking: %w", err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 10_000); err != nil {
		return err
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); n != 0 || err != nil {
		return errors.Join(err, syscall.Errno(n))
	}
	return unix.SetNonblock(fd, false)
}

// awaitJoin waits until an MPTCP connection has a subflow besides the first.
func awaitJoin(fd int) error {
	const mptcpInfo = 1
	for range 500 {
		var subflows byte // mptcpi_subflows, the first field
		size := uint32(1)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_MPTCP, mptcpInfo,
			uintptr(unsafe.Pointer(&subflows)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		if subflows > 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("there is no second subflow")
}

func hear(fd int) (string, error) {
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return string(b[:n]), nil
}

func sockaddr(family int, a netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// peerOf keeps IPv4-mapped addresses as they are.
func peerOf(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if sa4, ok := sa.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(netip.AddrFrom4(sa4.Addr), uint16(sa4.Port)), nil
	}
	sa6 := sa.(*unix.SockaddrInet6)
	return netip.AddrPortFrom(netip.AddrFrom16(sa6.Addr), uint16(sa6.Port)), nil
}
