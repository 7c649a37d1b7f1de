package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// stateFile is a JSON file of the state directory by which an agent hands what it learned to the next one. The client works
// without it: a file that is damaged is set aside, and one that cannot be written is reported in the log. Only the client's
// loop uses a stateFile, except for write.
type stateFile struct {
	path  string        // empty: nothing is kept
	every time.Duration // between two writes
	// damage and unsaved are the effects of a damaged file, and of one that cannot be written, for the log.
	damage, unsaved string
	log             *slog.Logger

	saved   time.Time         // or when the wait for the first write began
	busy    bool              // a write is under way
	failed  bool              // the last write did
	written [sha256.Size]byte // of the content that was written last
}

// longestState bounds the size of a file that is read, in bytes.
const longestState = 8 << 20

// read passes the file's content to parse. It does nothing if there is no file. If parse fails or the file is too long, it
// renames the file, so that somebody can look at it, and logs that; parse must then have changed nothing.
func (f *stateFile) read(parse func(data []byte) error) {
	if f.path == "" {
		return
	}
	data, err := readBounded(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = parse(data)
	}
	if err != nil {
		aside := damaged(f.path)
		moved := os.Rename(f.path, aside)
		f.log.Warn("a file of the agent's state is damaged, and was set aside; delete it if nobody wants to look at it",
			"file", aside, "effect", f.damage, "err", errors.Join(err, moved))
	}
}

// damaged returns the name under which a damaged file is set aside.
func damaged(file string) string { return file + ".damaged" }

func readBounded(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, longestState+1))
	if err == nil && len(data) > longestState {
		err = fmt.Errorf("%s is longer than %d bytes", name, longestState)
	}
	return data, err
}

// parseStrictly decodes JSON into form. Unknown keys are errors.
func parseStrictly(data []byte, form any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(form)
}

// due reports whether it is time to write the file. If so, the caller writes it and then calls ended.
func (f *stateFile) due(now time.Time) bool {
	if f.path == "" {
		return false
	}
	if f.saved.IsZero() {
		f.saved = now
	}
	if f.busy || now.Sub(f.saved).Abs() < f.every {
		return false
	}
	f.saved, f.busy = now, true
	return true
}

// write writes form to the file, or removes the file if form is nil. It does nothing if the file has that content already.
// It may run outside of the loop, but only one write at a time.
func (f *stateFile) write(form any) error {
	var data []byte
	if form != nil {
		var err error
		if data, err = json.MarshalIndent(form, "", "\t"); err != nil {
			return err
		}
		data = append(data, '\n')
	}
	sum := sha256.Sum256(data)
	if sum == f.written {
		return nil
	}
	if err := f.replace(data); err != nil {
		return err
	}
	f.written = sum
	return nil
}

// replace puts data into the file; nil: it removes the file.
func (f *stateFile) replace(data []byte) error {
	if data != nil {
		return durable.Replace(f.path, data, 0o600)
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ended takes in the result of a write. It logs the first failure in a row.
func (f *stateFile) ended(err error) {
	if err != nil && !f.failed {
		f.log.Warn("a file of the agent's state cannot be saved", "file", f.path, "effect", f.unsaved, "err", err)
	}
	f.busy, f.failed = false, err != nil
}

// writeLast writes the file when the loop has ended.
func (f *stateFile) writeLast(form any) {
	if f.path != "" {
		f.ended(f.write(form))
	}
}

// saveState writes the state files that are due. The disk may be slow, so it happens in the background.
func (c *Client) saveState(ctx context.Context, now time.Time) {
	if c.memory.due(now) {
		c.writeState(ctx, &c.memory, memoryOf(c.manager.Memory()))
	}
	if c.budget.due(now) {
		c.writeState(ctx, &c.budget, budgetForm{budgetVersion, c.manager.Used()})
	}
}

func (c *Client) writeState(ctx context.Context, f *stateFile, form any) {
	c.inbox.inBackground(ctx, func() func(time.Time) {
		err := f.write(form)
		return func(time.Time) { f.ended(err) }
	})
}
