package mptcpify

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A madeTable holds the latest sockets that one supervisor made, each at the index of its cookie modulo the table's
// size. Few are needed, because most programs connect a socket within microseconds.
type madeTable [256]made

// made notes the making of a socket. It is valid while cookie is not 0.
type made struct {
	cookie uint64
	at     int64 // monotonic
	tid    uint32
	forks  uint32
}

// madeFor limits the age of a socket that counts as just made. In this time, process numbers cannot wrap around to the
// same number.
const madeFor = time.Second

// noteMade notes that a socket was made for a thread.
func (s *supervisor) noteMade(tid uint32, fd int) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return
	}
	last, err := s.forks.last()
	if err != nil {
		return
	}
	s.shared.madeMu.Lock()
	defer s.shared.madeMu.Unlock()
	table := &s.shared.made[s.side]
	entry := &table[cookie%uint64(len(table))]
	atomic.StoreUint64(&entry.cookie, 0)
	entry.at, entry.tid, entry.forks = monotonic(), tid, last
	atomic.StoreUint64(&entry.cookie, cookie)
}

// justMade reports whether the socket with a cookie was made for this thread, and no process or thread was started
// since. Then no other process has inherited it.
func (s *supervisor) justMade(tid uint32, cookie uint64) bool {
	s.shared.madeMu.Lock()
	defer s.shared.madeMu.Unlock()
	for side := range s.shared.made {
		table := &s.shared.made[side]
		entry := &table[cookie%uint64(len(table))]
		if atomic.LoadUint64(&entry.cookie) != cookie {
			continue
		}
		found := *entry
		// The other supervisor may have written meanwhile.
		if atomic.LoadUint64(&entry.cookie) != cookie || found.tid != tid || monotonic()-found.at > int64(madeFor) {
			return false
		}
		last, err := s.forks.last()
		return err == nil && last == found.forks
	}
	return false
}

// forks shows whether processes and threads were started.
type forks struct {
	mu   sync.Mutex
	file *os.File // proc_loadavg(5), whose last field is the number of the newest process or thread
	text [128]byte
}

func openForks() (*forks, error) {
	file, err := os.Open("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("look for new processes: %w", err)
	}
	return &forks{file: file}, nil
}

// last returns the number of the newest process or thread in our pid namespace or below it.
func (f *forks) last() (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, f.file.Fd(), uintptr(unsafe.Pointer(&f.text[0])), uintptr(len(f.text)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	line := bytes.TrimSpace(f.text[:n])
	last, err := strconv.ParseUint(string(line[bytes.LastIndexByte(line, ' ')+1:]), 10, 32)
	return uint32(last), err
}

// threads remembers threads that are not the only one of their process.
type threads struct {
	mu   sync.Mutex
	seen map[uint32]time.Time // by number: when
}

// severalFor is the time for which a thread counts as one of several after it was seen as such. If its number is reused
// meanwhile, sockets of the new thread stay MPTCP. mostThreads bounds the threads that are remembered.
const (
	severalFor  = 10 * time.Second
	mostThreads = 1024
)

// isSeveral reports whether a thread was seen as one of several at most severalFor ago. It makes no system call.
func (t *threads) isSeveral(tid uint32, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen, ok := t.seen[tid]
	return ok && now.Sub(seen) < severalFor
}

// look reports whether a thread is the only one of its process, and remembers it if not.
func (t *threads) look(tid uint32, now time.Time) (only bool) {
	var st unix.Stat_t
	if statQuickly("/proc/"+strconv.FormatUint(uint64(tid), 10)+"/task", &st) != nil {
		return false
	}
	if st.Nlink == 2+1 { // a folder has a link for itself, its parent, and each of its folders
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.seen) >= mostThreads {
		clear(t.seen) // looked for again
	}
	t.seen[tid] = now
	return false
}

// isOnlyDescriptor reports whether a descriptor is the only reference of a process to a socket: the process has no
// duplicate of it, and no epoll set with it. The caller must ensure that the process has one thread, which runs nothing
// meanwhile, and that no other process has inherited the socket.
//
// It cannot see a duplicate that the process has sent to another one (unix(7), SCM_RIGHTS), or that a debugger took.
func isOnlyDescriptor(tid uint32, number int, fd int) bool {
	process := "/proc/" + strconv.FormatUint(uint64(tid), 10)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	dir, err := os.Open(process + "/fd")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(mostDescriptors + 1)
	if err != nil || len(names) > mostDescriptors {
		return false
	}
	socket := fmt.Sprintf("socket:[%d]", st.Ino)
	for _, name := range names {
		switch target, err := readlinkAt(dir, name); {
		case err != nil:
			return false
		case target == socket:
			if name != strconv.Itoa(number) {
				return false
			}
		case target == "anon_inode:[eventpoll]":
			if mayWatch(process+"/fdinfo/"+name, st.Ino) {
				return false
			}
		case strings.HasPrefix(target, "anon_inode:[io_uring]"):
			return false // it has references of its own
		}
	}
	return true
}

// mostDescriptors is the number of descriptors up to which a process is searched for duplicates. It bounds the time.
const mostDescriptors = 256

func readlinkAt(dir *os.File, name string) (string, error) {
	var text [64]byte
	n, err := unix.Readlinkat(int(dir.Fd()), name, text[:])
	return string(text[:max(n, 0)]), err
}

// mayWatch reports whether an epoll set has a file with this inode, or cannot be read.
func mayWatch(fdinfo string, inode uint64) bool {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return true
	}
	want := "ino:" + strconv.FormatUint(inode, 16)
	for line := range bytes.Lines(text) {
		for field := range bytes.FieldsSeq(line) {
			if string(field) == want {
				return true
			}
		}
	}
	return false
}
