package mptcpify

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dialOnRequest makes a connection for each byte of standard input, and prints the nanoseconds that its calls take
// together. protocol is the protocol of its sockets.
func dialOnRequest(addr, number string) int {
	protocol, err := strconv.Atoi(number)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	to, _ := callerSocket{family: unix.AF_INET}.sockaddr(netip.MustParseAddrPort(addr))
	for in := make([]byte, 1); ; {
		if _, err := os.Stdin.Read(in); err != nil {
			return 0
		}
		spent, err := dialOnce(to, protocol)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(strings.Trim(fmt.Sprint(spent), "[]"))
	}
}

// dialOnce makes the calls of a Go program that dials, and closes the connection. It returns the nanoseconds of each.
func dialOnce(to unix.Sockaddr, protocol int) (spent [len(dialCalls)]int64, err error) {
	before := time.Now()
	took := func(i int) {
		now := time.Now()
		spent[i], before = now.Sub(before).Nanoseconds(), now
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return spent, err
	}
	defer unix.Close(fd)
	took(0)
	if err := unix.Connect(fd, to); err != nil {
		return spent, err
	}
	took(1)
	for i := range 2 {
		if _, err := unix.Getpeername(fd); err != nil {
			return spent, err
		}
		took(2 + i)
	}
	return spent, nil
}

// dialCalls names the calls of dialOnce.
var dialCalls = [...]string{"socket", "connect", "getpeername", "getpeername again"}

// BenchmarkDial compares what connections to a server that is reached directly cost a program that makes one now and
// then: by TCP, by MPTCP without dcol, under `dcol run` without a relay, with a relay that wants nothing converted, and
// with one that knows the server to speak no MPTCP. They take turns, with a pause before each, so that the supervisors
// sleep as they do beside most programs.
func BenchmarkDial(b *testing.B) {
	newSite(b)
	server := acceptAndClose(b, false)
	direct, plainServer := startRelay(b, modeDirect), startRelay(b, modePlain)
	plain := mark(b, dialMark, server, "0")
	own := mark(b, dialMark, server, strconv.Itoa(unix.IPPROTO_MPTCP))
	dialers := []*dialer{{name: "tcp", cmd: plain}, {name: "mptcp", cmd: own}, {name: "run", cmd: run(b, plain.Args...)},
		{name: "relay", cmd: direct.run(b, plain.Args...)}, {name: "plain server", cmd: plainServer.run(b, plain.Args...)}}
	for _, d := range dialers {
		d.start(b)
		for range 5 {
			d.dial(b)
		}
		d.spent, d.all = [len(dialCalls)][]int64{}, nil
	}
	for i := range b.N * len(dialers) {
		time.Sleep(dialPause)
		dialers[(i+i/len(dialers))%len(dialers)].dial(b)
	}
	b.ReportMetric(0, "ns/op")
	for _, d := range dialers {
		var parts []string
		for i, name := range dialCalls {
			parts = append(parts, fmt.Sprintf("%s %.1f", name, float64(median(d.spent[i]))/1e3))
		}
		b.Logf("%s: %s; together %.1f µs", d.name, strings.Join(parts, ", "), float64(median(d.all))/1e3)
	}
}

func median(of []int64) int64 {
	slices.Sort(of)
	return of[len(of)/2]
}

const dialPause = 12 * time.Millisecond

// dialer is a program that dials when it is told to.
type dialer struct {
	name  string
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Scanner
	spent [len(dialCalls)][]int64 // nanoseconds
	all   []int64
}

func (d *dialer) start(b *testing.B) {
	in, err := d.cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = d.cmd.Wait()
	})
	d.in, d.out = in, bufio.NewScanner(out)
}

func (d *dialer) dial(b *testing.B) {
	if _, err := d.in.Write([]byte{0}); err != nil {
		b.Fatal(err)
	}
	if !d.out.Scan() {
		b.Fatal("the program ended")
	}
	var all int64
	for i, field := range strings.Fields(d.out.Text()) {
		ns, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		d.spent[i] = append(d.spent[i], ns)
		all += ns
	}
	d.all = append(d.all, all)
}
