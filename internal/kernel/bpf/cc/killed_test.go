package cc

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// holder is the variable by which this program registers LIA, writes its name, and lives until it is killed.
const holder = "DCOL_TEST_HOLD"

// Hold is that program. It reports whether it was asked for.
func Hold() bool {
	if os.Getenv(holder) == "" {
		return false
	}
	r, err := Register(LIA)
	if err != nil {
		fmt.Println(err)
		return true
	}
	fmt.Println(r.Name())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// A process that registered an algorithm is killed while a connection sends by it. The connection goes on, and keeps the
// algorithm. Nobody can choose it any more. A later process registers it again, and connections by both programs go on.
func TestKilledInMidTransfer(t *testing.T) {
	registered(t, LIA) // or skips
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ns := netnstest.New(t)
	program := exec.Command(self)
	program.Env = append(os.Environ(), holder+"=1")
	_, out := ns.Start(t, program, "")
	line, err := bufio.NewReader(out).ReadString('\n')
	name := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(name, "lia") {
		t.Fatalf("%q, %v", line, err)
	}
	l := ns.Listen(t, "127.0.0.1:0")
	client, err := ns.Dial(t.Context(), netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := choose(client, name); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	const half = 32 << 20
	go func() {
		_, err := client.Write(make([]byte, 2*half))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, server, half); err != nil {
		t.Fatal(err)
	}
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); slices.Contains(available(t), name); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is still listed")
		}
	}
	if _, err := io.CopyN(io.Discard, server, half); err != nil {
		t.Error(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if got := congestionOf(t, client); got != name {
		t.Errorf("the connection has %q, not %q", got, name)
	}
	if err := choose(server, name); err == nil {
		t.Error("it can still be chosen")
	}

	again := registered(t, LIA)
	if err := choose(server, again.Name()); err != nil {
		t.Error(err)
	}
	goes(t, client, server)
	goes(t, server, client)
}

// goes sends some megabytes over a connection.
func goes(t *testing.T, from, to net.Conn) {
	t.Helper()
	const size = 8 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, size))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, to, size); err != nil {
		t.Error(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// choose sets a connection's congestion control.
func choose(c net.Conn, name string) (err error) {
	raw, e := c.(*net.TCPConn).SyscallConn()
	if e != nil {
		return e
	}
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) }); e != nil {
		return e
	}
	return err
}
