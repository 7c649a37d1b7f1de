package attribution

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// writer owns the file. Its methods write complete lines or nothing.
type writer struct {
	path   string
	limits Limits
	author *Author
	shares *shares
	file   *os.File
	size   int64
	torn   bool // the file has a partial line after size

	ready bool // chain continues the existing log
	chain
	shown map[wire.SessionID]bool // sessions whose proof the file has
	certs string                  // those of the file's last head

	failure error
	failed  time.Time
}

// headRoom is reserved in a file for the head that ends it.
const headRoom = 4 << 10

// retryAfter is the pause after a failed write.
const retryAfter = time.Second

// write adds entries. lost is the number of entries lost so far.
func (w *writer) write(entries []Entry, lost uint64) error {
	return w.try(func(b *batch, now time.Time) {
		b.noteLost(now, lost)
		for _, e := range entries {
			b.add(e)
		}
	})
}

// summarise writes summaries that are due, or all of them.
func (w *writer) summarise(all bool, lost uint64) error {
	entries := w.shares.due(time.Now(), all)
	if len(entries) == 0 {
		return nil
	}
	if all { // the agent stops
		w.failure = nil
	}
	err := w.write(entries, lost)
	if err == nil {
		w.shares.written(entries)
	}
	return err
}

// sign adds a head if there are unsigned lines, and syncs the file.
func (w *writer) sign(event Event, lost uint64) error {
	if w.unsigned == 0 && event != logClosed {
		return nil
	}
	if event == logClosed { // the agent stops
		w.failure = nil
	}
	err := w.try(func(b *batch, now time.Time) {
		b.noteLost(now, lost)
		b.sign(now, event)
	})
	if err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("write the attribution log: %w", err)
	}
	return nil
}

// try writes lines, unless a write failed less than retryAfter ago.
func (w *writer) try(lines func(*batch, time.Time)) error {
	if w.failure != nil && time.Since(w.failed) < retryAfter {
		return w.failure
	}
	if w.failure = w.put(lines); w.failure != nil {
		w.failed = time.Now()
		w.close()
	}
	return w.failure
}

func (w *writer) put(lines func(*batch, time.Time)) error {
	if err := w.open(); err != nil {
		return err
	}
	b := w.batch(lines)
	if w.size > 0 && w.size+int64(len(b.text)) > w.limits.FileBytes-headRoom {
		if err := w.rotate(); err != nil {
			return err
		}
		b = w.batch(lines)
	}
	return w.append(b)
}

// batch returns the lines, after those that a new file needs first.
func (w *writer) batch(lines func(*batch, time.Time)) *batch {
	b := &batch{chain: w.chain, author: w.author, shown: w.shown, fresh: make(map[wire.SessionID]bool), certs: w.certs, bytes: make(map[string]int)}
	now := time.Now()
	if w.size == 0 {
		b.begin(now)
	}
	if b.resumed != nil {
		l := *b.resumed
		l.Time, b.resumed = now, nil
		b.append(l)
	}
	lines(b, now)
	return b
}

func (w *writer) append(b *batch) error {
	n, err := w.file.Write(b.text)
	if err != nil {
		w.torn = n > 0 && w.file.Truncate(w.size) != nil // possible even on a full disk
		return fmt.Errorf("write the attribution log: %w (free disk space, or make %s writable)", err, w.path)
	}
	w.size += int64(n)
	w.chain, w.certs = b.chain, b.certs
	maps.Copy(w.shown, b.fresh)
	w.shares.charge(b.bytes, time.Now())
	return nil
}

// open opens the file. The first time it also finds the end of the chain.
func (w *writer) open() error {
	if w.file != nil {
		if w.inPlace() {
			return nil
		}
		w.close()
	}
	const fix = "(set [waypoint] log to a file that can be written)"
	if err := os.MkdirAll(filepath.Dir(w.path), 0o750); err != nil {
		return fmt.Errorf("open the attribution log: %w %s", err, fix)
	}
	if !w.ready {
		if err := w.resume(); err != nil {
			return fmt.Errorf("continue the attribution log: %w %s", err, fix)
		}
	}
	file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the attribution log: %w %s", err, fix)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("open the attribution log: %w", err)
	}
	size := info.Size()
	if w.torn && size > w.size {
		if err := file.Truncate(w.size); err != nil {
			_ = file.Close()
			return fmt.Errorf("remove half a line of the attribution log: %w", err)
		}
		size = w.size
	}
	if size == 0 { // new, or emptied by somebody
		w.shown, w.certs = make(map[wire.SessionID]bool), ""
	}
	w.file, w.size, w.torn = file, size, false
	return nil
}

// inPlace reports whether the path still names the open file, and nobody else has written to it or truncated it. Lines
// must not be written to a removed file. The numbers reveal those that were.
func (w *writer) inPlace() bool {
	there, err := os.Stat(w.path)
	if err != nil {
		return false
	}
	ours, err := w.file.Stat()
	return err == nil && os.SameFile(there, ours) && ours.Size() == w.size
}

// resume finds the end of the chain, after the last existing line. It renames a file that is not our log.
func (w *writer) resume() error {
	now, err := readEnd(w.path)
	if err == nil {
		err = now.repair(w.author)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	last := now
	if now.none() { // an agent may have died while rotating
		if last, err = readEnd(w.aside(1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	switch {
	case last.of(w.author):
		w.chain = last.chain()
		w.resumed.DroppedBytes += now.dropped
	case now.none():
		w.chain = newChain(time.Now())
	default:
		if err := w.shift(); err != nil {
			return err
		}
		w.chain = newChain(time.Now())
	}
	w.ready, w.shown, w.certs = true, make(map[wire.SessionID]bool), ""
	return nil
}

// rotate signs the file and renames it.
func (w *writer) rotate() error {
	if w.unsigned > 0 {
		b := &batch{chain: w.chain, author: w.author, certs: w.certs}
		b.sign(time.Now(), headSigned)
		_ = w.append(b) // on a full disk the first head of the next file covers this one
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("write the attribution log: %w", err)
	}
	w.close()
	if err := w.shift(); err != nil {
		return err
	}
	w.torn = false // the next file has no partial line
	return w.open()
}

func (w *writer) shift() error {
	for i := w.limits.Files - 1; i >= 1; i-- {
		from := w.aside(i - 1)
		if err := os.Rename(from, w.aside(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the attribution log: %w", err)
		}
	}
	if w.limits.Files == 1 {
		if err := os.Remove(w.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the attribution log: %w", err)
		}
	}
	return nil
}

// aside returns the name of the i-th older file.
func (w *writer) aside(i int) string { return aside(w.path, i) }

func aside(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

func (w *writer) close() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}
