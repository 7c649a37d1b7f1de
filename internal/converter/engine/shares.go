package engine

import (
	"bytes"
	"math/bits"
	"os"
	"strconv"
	"sync"
)

// shares divides the kernel's memory for buffers among the busy ends. The marks of servers' connections (Dial.Mark) have
// even shares of it, so that one member's ends take little from the others', and the ends with a mark have even shares of
// its share. Any goroutine may call the methods.
type shares struct {
	memory int64 // bytes

	mu    sync.Mutex
	held  int64 // bytes, by all marks
	marks map[uint32]account
}

// account is the use of a mark.
type account struct {
	moving int   // the number of its busy ends that move data
	held   int64 // the size of the buffers, in bytes, of those that hold data for slow readers
}

const (
	// bufferLeast is the least share of a buffer, in bytes. Linux gives a new connection as much.
	bufferLeast = 128 << 10
	// defaultBuffers is the memory for buffers, in bytes, if the system's limit is not known.
	defaultBuffers = 128 << 20
)

// newShares returns shares of the memory below which Linux does not limit the use by TCP (the first value of tcp_mem).
func newShares() *shares {
	s := &shares{memory: defaultBuffers, marks: make(map[uint32]account)}
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_mem")
	if fields := bytes.Fields(text); err == nil && len(fields) == 3 {
		if pages, err := strconv.ParseInt(string(fields[0]), 10, 64); err == nil {
			s.memory = pages * int64(os.Getpagesize())
		}
	}
	return s
}

// change adds to the number of a mark's ends that move data, and to the bytes of those that hold data. Both may be
// negative.
func (s *shares) change(mark uint32, moving int, held int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += held
	a := s.marks[mark]
	a.moving, a.held = a.moving+moving, a.held+held
	if s.marks[mark] = a; a == (account{}) {
		delete(s.marks, mark)
	}
}

// of returns the most bytes for each of the two buffers of an end with this mark that moves data.
func (s *shares) of(mark uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.marks[mark]
	left := min(s.each()-a.held, s.memory-s.held)
	return powerOfTwo(int(max(left/int64(2*max(1, a.moving)), bufferLeast)))
}

// isFull reports whether there is no share for another end with this mark.
func (s *shares) isFull(mark uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.marks[mark]
	return a.held+int64(a.moving)*2*bufferLeast >= s.each()
}

// each returns the share of a mark. Another mark's is left over.
func (s *shares) each() int64 { return s.memory / int64(len(s.marks)+1) }

// powerOfTwo returns the largest power of two up to n. It keeps shares as they are while they change little.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }
