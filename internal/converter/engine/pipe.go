package engine

import (
	"golang.org/x/sys/unix"
)

// pipe holds bytes from a TCP socket until they are written to the other end.
type pipe struct{ out, in int }

// pipes are a loop's pipes. Empty ones are kept for the next end that needs one.
type pipes struct {
	free []*pipe
	size int // of a pipe, in bytes
	made int
}

const (
	// pipeSize is Linux' limit without privileges (fs.pipe-max-size). A smaller pipe costs half of the goodput.
	pipeSize = 1 << 20
	// pipesMost bounds the pipes of a loop. The bytes of an end that gets none are read and written.
	pipesMost = 128
)

// take returns an empty pipe, or nil if there is none.
func (p *pipes) take() *pipe {
	if n := len(p.free); n > 0 {
		one := p.free[n-1]
		p.free = p.free[:n-1]
		return one
	}
	if p.made == pipesMost {
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil
	}
	size, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	if err != nil {
		size, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_GETPIPE_SZ, 0)
	}
	p.size = max(size, 4096)
	p.made++
	return &pipe{out: fds[0], in: fds[1]}
}

// give takes a pipe back. It closes a pipe that still has bytes in it (used).
func (p *pipes) give(one *pipe, used bool) {
	if used {
		one.close()
		p.made--
		return
	}
	p.free = append(p.free, one)
}

func (p *pipes) close() {
	for _, one := range p.free {
		one.close()
	}
	p.free = nil
}

func (p *pipe) close() {
	_ = unix.Close(p.in)
	_ = unix.Close(p.out)
}
