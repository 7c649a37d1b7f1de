package emulink

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch limits the packets of one pipe that are handled before the next pipe's turn, so that a burst on one
// does not delay the others.
const batch = 32

// port is a pipe with the devices that it reads from and writes to.
type port struct {
	*pipe
	in, out int
	back    *port // the other direction
	// The stations of the sending and the receiving host; nil if the host has none.
	near, far *station
	nearHost  string
	farAddr   [2]netip.Addr // the receiving host's, on this link
}

// loop carries packets. Everything except do runs on one thread.
type loop struct {
	ports   []port
	epoll   int
	wake    int           // eventfd that signals a call
	calls   chan func()   // to run on the loop's thread
	ended   chan struct{} // closed when the loop has failed
	failure error         // why
	start   time.Time     // the epoch of now
	sleep   sleeper
	spare   [65536]byte // receives packets for which there is no room
	woken   [64]unix.EpollEvent
}

func newLoop(ports []port) (*loop, error) {
	l := &loop{ports: ports, calls: make(chan func(), 1), ended: make(chan struct{}), start: time.Now()}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	if err := l.watch(l.wake, -1); err != nil {
		return nil, err
	}
	for i := range ports {
		ports[i].back = &ports[i^1]
	}
	for i, p := range ports {
		if err := unix.SetNonblock(p.in, true); err != nil {
			return nil, fmt.Errorf("make device non-blocking: %w", err)
		}
		if err := l.watch(p.in, i); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *loop) watch(fd, port int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(port)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch device: %w", err)
	}
	return nil
}

// now returns the time on the monotonic clock since start.
func (l *loop) now() int64 { return int64(time.Since(l.start)) }

// do runs f on the loop's thread, at a moment when no packet is being handled, and waits until f returns.
func (l *loop) do(f func(now int64)) error {
	done := make(chan struct{})
	select {
	case l.calls <- func() { f(l.now()); close(done) }:
	case <-l.ended:
		return l.failure
	}
	one := [8]byte{1} // any non-zero number
	if _, err := unix.Write(l.wake, one[:]); err != nil {
		return fmt.Errorf("wake the loop: %w", err)
	}
	select {
	case <-done:
		return nil
	case <-l.ended:
		return l.failure
	}
}

// run carries packets until a system call fails. Its thread must be locked.
//
// It makes raw system calls, which bypass Go's scheduler. Nothing else needs this thread's slot, and getting the slot
// back after a normal call would take time.
func (l *loop) run() {
	for {
		now, latest := l.deliver()
		wait := unix.NsecToTimespec(l.sleep.until(now, latest))
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll),
			uintptr(unsafe.Pointer(&l.woken)), uintptr(len(l.woken)), uintptr(unsafe.Pointer(&wait)), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			l.failure = fmt.Errorf("the loop has ended: wait for packets: %w", errno)
			close(l.ended)
			return
		}
		for _, ev := range l.woken[:n] {
			if ev.Fd < 0 {
				l.answer()
			} else {
				l.receive(&l.ports[ev.Fd])
			}
		}
	}
}

// deliver writes the packets that are due, up to a batch for each pipe. It returns the current time and the latest time
// to deliver the next packet, which may have passed.
//
// Reading the clock is a large part of the work, so deliver reads it only once per packet.
func (l *loop) deliver() (now, latest int64) {
	now, latest = l.now(), math.MaxInt64
	for i := range l.ports {
		p := &l.ports[i]
		for range batch {
			due := p.next()
			if !l.sleep.ready(now, due, p.slack) {
				break
			}
			p.send(now, due)
			now = l.now()
			l.sleep.sent = now
		}
		if due := p.next(); l.sleep.ready(now, due, p.slack) {
			latest = now // more than one batch is due
		} else {
			latest = min(latest, l.sleep.latest(due, p.slack))
		}
	}
	return now, latest
}

// send delivers, drops or holds back the first packet, which is due.
func (p *port) send(now, due int64) {
	data, fate := p.first()
	switch {
	case fate.lost:
		p.stats.LossDrops++
	case fate.late && p.holdBack():
		p.stats.Reordered++
	case p.expire(now, data):
	default:
		p.late.add(max(now-due, due-now))
		p.deliver(data, fate)
	}
	p.pop(now)
}

func (p *port) deliver(data []byte, fate fate) {
	p.write(data)
	if fate.twice {
		p.stats.Duplicated++
		p.write(data)
	}
	if fate.corrupted {
		p.stats.Corrupted++
	}
	if fate.tampered {
		p.stats.Tampered++
	}
}

func (p *port) write(data []byte) {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.out), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
	if errno != 0 {
		p.stats.WriteErrors++
		return
	}
	p.stats.Packets++
	p.stats.Bytes += uint64(len(data))
}

// receive reads up to a batch of packets. It stops watching a device whose host is gone.
func (l *loop) receive(p *port) {
	for range batch {
		space := p.space()
		full := space == nil
		if full {
			space = l.spare[:]
		}
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(p.in), uintptr(unsafe.Pointer(&space[0])), uintptr(len(space)))
		switch {
		case errno == 0 && full:
			p.stats.RingDrops++
		case errno == 0:
			if now := l.now(); !p.pass(now, space[:n]) {
				p.offer(now, int(n))
			}
		case errno == unix.EAGAIN || errno == unix.EINTR:
			return
		default:
			// If this fails, the loop is busy, but works.
			_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, p.in, nil)
			return
		}
	}
}

// answer runs the pending calls.
func (l *loop) answer() {
	var count [8]byte
	if _, err := unix.Read(l.wake, count[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		return
	}
	for {
		select {
		case call := <-l.calls:
			call()
		default:
			return
		}
	}
}
