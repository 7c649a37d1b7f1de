package mptcpify

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// linux/userfaultfd.h
const (
	uffdAPI      = 0xc018aa3f
	uffdRegister = 0xc020aa00
)

// connectFromNowhere calls connect() with an address in a page that never arrives, like that of a file whose server is
// away. It prints a line when it has made another socket.
func connectFromNowhere() int {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		fmt.Println("skip:", errno)
		return 0
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 1
	}
	api := [3]uint64{0xaa}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(page)))
	register := [4]uint64{uint64(at), uint64(len(page)), 1} // missing pages
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return 1
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdRegister, uintptr(unsafe.Pointer(&register))); errno != 0 {
		return 1
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 1
	}
	go func() { _, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(sock), at, unix.SizeofSockaddrInet4) }()
	time.Sleep(300 * time.Millisecond)
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return 1
	}
	fmt.Println("made")
	return 0
}

// A connect() whose address cannot be read for now delays no other program.
func TestStuckCallDelaysNobody(t *testing.T) {
	newSite(t)
	relay := startRelay(t, "never")
	cmd := mark(t, runMark, os.Args[0], stuckMark, "x")
	cmd.Env = append(os.Environ(), relayVariable+"="+relay.socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
	defer late.Stop()
	text, _ := io.ReadAll(out)
	_ = cmd.Wait()
	switch {
	case strings.HasPrefix(string(text), "skip"):
		t.Skip(string(text))
	case string(text) != "made\n":
		t.Error("another socket is not made within 5 s")
	}
}
