package register

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// The file has one entry on each line, with a checksum before it. A change appends a line, which is on the disk
// before anybody hears of the change. So a half-written last line, after a power cut, can be cut off. When the file
// has grown enough, it is rewritten without the entries that were replaced.
const (
	fileFormat = 1
	sumChars   = 16
	maxLine    = 64 << 10
	maxFile    = 1 << 30
	rewriteAt  = 1 << 20 // bytes above twice the size after the last rewrite
)

// File is a register's open file. It is not safe for concurrent use.
type File struct {
	path       string
	collective string
	file       *os.File
	size       int64
	floor      int64 // size after the last rewrite
	broken     error // set when the content is no longer known: nothing more can be written
}

// Damage describes what was wrong with a file.
type Damage struct {
	What []string // one sentence for each finding
	Lost bool     // whole entries may be missing
}

// Add adds a finding.
func (d *Damage) Add(lost bool, format string, args ...any) {
	d.What, d.Lost = append(d.What, fmt.Sprintf(format, args...)), d.Lost || lost
}

// Create makes the file of a new collective.
func Create(path, collective string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("make the coordinator's state: %s exists already", path)
	}
	line, err := encodeEntry(&Entry{Format: fileFormat, Collective: collective})
	if err != nil {
		return err
	}
	return durable.Replace(path, line, 0o600)
}

// Open reads a file into r. If entries were lost, the caller must Rewrite it before anything is saved.
func Open(path, collective string, r *Register) (*File, *Damage, error) {
	d := &Damage{}
	data, err := readAll(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.Add(true, "%s is missing", path)
	case err != nil:
		return nil, nil, fmt.Errorf("read the coordinator's state: %w", err)
	}
	good, err := readEntries(path, data, collective, r, d)
	if err != nil {
		return nil, nil, err
	}
	f := &File{path: path, collective: collective}
	if d.Lost && len(data) > 0 {
		aside := path + ".damaged-" + time.Now().UTC().Format("20060102-150405")
		if err := durable.Replace(aside, data, 0o600); err != nil {
			return nil, nil, err
		}
		d.Add(true, "a copy of the damaged file is in %s", aside)
	}
	if d.Lost {
		return f, d, nil
	}
	if err := f.reopen(int64(good)); err != nil {
		return nil, nil, err
	}
	return f, d, nil
}

// readEntries applies the entries in data, and returns the length of its undamaged beginning.
func readEntries(path string, data []byte, collective string, r *Register, d *Damage) (good int, err error) {
	for n := 1; good < len(data); n++ {
		rest := data[good:]
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			d.Add(n == 1, "line %d of %s is incomplete; it is removed, because the change had no effect yet", n, path)
			return good, nil
		}
		e, err := decodeEntry(rest[:end])
		switch {
		case err != nil && good+end+1 == len(data):
			d.Add(n == 1, "line %d of %s is incomplete; it is removed, because the change had no effect yet", n, path)
			return good, nil
		case err != nil:
			d.Add(true, "line %d of %s is damaged: %v", n, path, err)
		case n == 1 && e.Format != fileFormat:
			return 0, fmt.Errorf("read the coordinator's state: %s has format %d, this dcol reads %d: install a newer one", path, e.Format, fileFormat)
		case n == 1 && e.Collective != collective:
			return 0, fmt.Errorf("read the coordinator's state: %s belongs to %q, the authority to %q: put the directory back as it was", path, e.Collective, collective)
		default:
			r.Apply(e)
		}
		good += end + 1
	}
	if len(data) == 0 && !d.Lost {
		d.Add(true, "%s is empty", path)
	}
	return good, nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}

func encodeEntry(e *Entry) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write the coordinator's state: %w", err)
	}
	if len(text) > maxLine {
		return nil, fmt.Errorf("write the coordinator's state: an entry has %d bytes, at most %d are allowed", len(text), maxLine)
	}
	sum := sha256.Sum256(text)
	return fmt.Appendf(nil, "%s %s\n", hex.EncodeToString(sum[:sumChars/2]), text), nil
}

func decodeEntry(line []byte) (*Entry, error) {
	if len(line) < sumChars+1 || line[sumChars] != ' ' {
		return nil, errors.New("not an entry")
	}
	text := line[sumChars+1:]
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:sumChars/2]) != string(line[:sumChars]) {
		return nil, errors.New("its checksum is wrong")
	}
	var e Entry
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, err
	}
	return &e, nil
}

// Save writes entries to the disk, then applies them to r.
func (f *File) Save(r *Register, entries ...Entry) error {
	if err := f.append(entries...); err != nil {
		return err
	}
	for i := range entries {
		r.Apply(&entries[i])
	}
	return nil
}

// append returns when the entries are on the disk. After an error, either none of them is there, or broken is set.
func (f *File) append(entries ...Entry) error {
	if f.broken != nil {
		return f.broken
	}
	var lines []byte
	for i := range entries {
		if entries[i].empty() {
			continue
		}
		line, err := encodeEntry(&entries[i])
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := f.file.WriteAt(lines, f.size)
	if err == nil {
		err = f.file.Sync()
	}
	if err == nil {
		f.size += int64(len(lines))
		return nil
	}
	err = fmt.Errorf("write the coordinator's state: %w", err)
	if cutErr := errors.Join(f.file.Truncate(f.size), f.file.Sync()); cutErr != nil {
		f.broken = fmt.Errorf("%w, and what was written cannot be taken back (%w): restart the coordinator", err, cutErr)
		return f.broken
	}
	return err
}

// Rewrite replaces the file by one that has only the present content of r.
func (f *File) Rewrite(r *Register) error {
	if f.broken != nil {
		return f.broken
	}
	var lines []byte
	for _, e := range append([]Entry{{Format: fileFormat, Collective: f.collective}}, r.all()...) {
		line, err := encodeEntry(&e)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	if err := durable.Replace(f.path, lines, 0o600); err != nil {
		return err
	}
	if err := f.reopen(int64(len(lines))); err != nil {
		f.broken = err // the open file has been replaced
		return err
	}
	return nil
}

// Due reports whether it is time to rewrite the file.
func (f *File) Due() bool { return f.size > 2*f.floor+rewriteAt }

func (f *File) reopen(size int64) error {
	file, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the coordinator's state: %w", err)
	}
	if err := file.Truncate(size); err != nil {
		file.Close()
		return fmt.Errorf("remove a half-written entry: %w", err)
	}
	f.Close()
	f.file, f.size, f.floor = file, size, size
	return nil
}

// Close closes the file.
func (f *File) Close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}
