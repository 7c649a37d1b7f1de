package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/detour-collective/dcol/internal/durable"
)

// errStore is returned if the server did not start because of its store.
var errStore = errors.New("the store cannot be read")

// startsBeforeAside is the number of failed starts in a row after which the store counts as damaged. A damaged file may
// crash the process itself at every start.
const startsBeforeAside = 3

// store is the directory of the embedded server. NATS uses its folder jetstream, and damaged data is moved to the
// folder damaged. The file starting has the number of starts in a row that failed.
type store struct {
	dir    string
	blocks map[string]int64 // sizes of the files with messages, before the start
}

func (s store) data() string     { return filepath.Join(s.dir, "jetstream") }
func (s store) starting() string { return filepath.Join(s.dir, "starting") }

// openStore creates or opens a store. It moves the data away if the server failed to start startsBeforeAside times.
func openStore(dir string) (store, []string, error) {
	s := store{dir: dir, blocks: map[string]int64{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, nil, fmt.Errorf("make the bus's store: %w", err)
	}
	text, err := os.ReadFile(s.starting())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, nil, fmt.Errorf("open the bus's store: %w", err)
	}
	// A file that cannot be read counts as 0. It is rewritten below.
	starts, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	var damage []string
	if starts >= startsBeforeAside {
		_, aside, err := s.putAside()
		if err != nil {
			return s, nil, err
		}
		damage = append(damage, fmt.Sprintf("the server did not come up %d times with the store: it lies in %s now", starts, aside))
		starts = 0
	}
	if err := s.distrust(); err != nil {
		return s, nil, err
	}
	err = durable.Replace(s.starting(), []byte(strconv.Itoa(starts+1)+"\n"), 0o600)
	if errors.Is(err, syscall.ENOSPC) {
		err = nil // the server shall start even if the disk is full; this start is not counted
	}
	return s, damage, err
}

// distrust removes NATS's indexes of its messages. With an index, NATS does not notice damage in the middle of a file.
// It writes new messages after it, and the next start does not find them. Without an index, NATS checks all messages
// and truncates files where they become unreadable.
func (s store) distrust() error {
	indexes, _ := filepath.Glob(filepath.Join(s.data(), "*", "streams", "*", "msgs", "index.db")) // the pattern is good
	for _, path := range indexes {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("open the bus's store: %w", err)
		}
	}
	blocks, _ := filepath.Glob(filepath.Join(s.data(), "*", "streams", "*", "msgs", "*.blk"))
	for _, path := range blocks {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("open the bus's store: %w", err)
		}
		s.blocks[path] = info.Size()
	}
	return nil
}

// ready records that the server has started.
func (s store) ready() error {
	if err := os.Remove(s.starting()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mark the bus's store as good: %w", err)
	}
	return nil
}

// putAside moves all data away; restore moves it back.
func (s store) putAside() (restore func() error, aside string, err error) {
	aside, err = s.move(s.data(), "all")
	restore = func() error {
		if err := os.RemoveAll(s.data()); err != nil { // the second attempt created it
			return fmt.Errorf("bring the bus's store back: %w", err)
		}
		return os.Rename(aside, s.data())
	}
	return restore, aside, err
}

func (s store) move(from, as string) (string, error) {
	damaged := filepath.Join(s.dir, "damaged")
	if err := os.MkdirAll(damaged, 0o700); err != nil {
		return "", fmt.Errorf("put a damaged store aside: %w", err)
	}
	to := filepath.Join(damaged, time.Now().UTC().Format("20060102-150405.000000000")+"-"+as)
	if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("put a damaged store aside: %w", err)
	}
	return to, nil
}

// check compares the streams that the server has loaded with those on disk, and lists the damage. It moves away streams
// that the server did not load, because new ones could not be created in their place. Bucket.Last shows messages that
// are missing without a trace; check does not notice these.
func (s store) check(nats *server.Server, account string) ([]string, error) {
	info, err := nats.Jsz(&server.JSzOptions{Account: account, Streams: true})
	if err != nil {
		return nil, fmt.Errorf("ask the bus's server for its streams: %w", err)
	}
	var damage []string
	taken := map[string]bool{}
	for _, a := range info.AccountDetails {
		for _, stream := range a.Streams {
			taken[stream.Name] = true
		}
	}
	for path, before := range s.blocks {
		// A file that does not exist any more is not damaged: the server did not need it.
		if now, err := os.Stat(path); err == nil && now.Size() < before {
			damage = append(damage, fmt.Sprintf("the last %d of %d bytes of %s are unreadable and cut off", before-now.Size(), before, path))
		}
	}
	streams := filepath.Join(s.data(), account, "streams")
	entries, err := os.ReadDir(streams)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the bus's store: %w", err)
	}
	for _, e := range entries {
		if taken[e.Name()] || strings.HasPrefix(e.Name(), ".") { // '.': the server is removing the stream
			continue
		}
		aside, err := s.move(filepath.Join(streams, e.Name()), e.Name())
		if err != nil {
			return nil, err
		}
		damage = append(damage, fmt.Sprintf("the description of %s is unreadable: it lies in %s now", e.Name(), aside))
	}
	return damage, nil
}
