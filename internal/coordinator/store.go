package coordinator

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

// The register's file: one entry a line, each with a checksum before it. A change is one more line, on the
// disk before anybody hears of it. What a power cut leaves half written at the end was told to nobody and is
// cut off. Now and then the file is written anew, without what has been replaced.
const (
	fileFormat = 1
	sumChars   = 16
	maxLine    = 64 << 10
	maxFile    = 1 << 30
	rewriteAt  = 1 << 20 // bytes more than twice what it had when it was written anew
)

// store is the file, open. Not for concurrent use.
type store struct {
	path  string
	file  *os.File
	size  int64
	floor int64 // its size when it was last written anew
	// broken is why nothing can be written any more: what the file holds is not known.
	broken error
}

// damage is what was found when the file was read.
type damage struct {
	what []string // in words
	lost bool     // whole entries may be missing
}

func (d *damage) add(lost bool, format string, args ...any) {
	d.what, d.lost = append(d.what, fmt.Sprintf(format, args...)), d.lost || lost
}

// createStore makes the file of a new collective.
func createStore(path, collectiveName string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("make the coordinator's state: %s exists already", path)
	}
	line, err := encodeEntry(&entry{Format: fileFormat, Collective: collectiveName})
	if err != nil {
		return err
	}
	return durable.Replace(path, line, 0o600)
}

// openStore reads the file, gives its entries to apply and makes it ready for more.
func openStore(path, collectiveName string, apply func(*entry)) (*store, *damage, error) {
	d := &damage{}
	data, err := readAll(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add(true, "%s is missing", path)
	case err != nil:
		return nil, nil, fmt.Errorf("read the coordinator's state: %w", err)
	}
	good, err := readEntries(path, data, collectiveName, apply, d)
	if err != nil {
		return nil, nil, err
	}
	s := &store{path: path}
	if d.lost && len(data) > 0 {
		aside := path + ".damaged-" + time.Now().UTC().Format("20060102-150405")
		if err := durable.Replace(aside, data, 0o600); err != nil {
			return nil, nil, err
		}
		d.add(true, "it lies in %s as it was", aside)
	}
	if d.lost {
		return s, d, nil // the caller writes it anew
	}
	if err := s.reopen(int64(good)); err != nil {
		return nil, nil, err
	}
	return s, d, nil
}

// readEntries returns up to where the file is whole.
func readEntries(path string, data []byte, collectiveName string, apply func(*entry), d *damage) (good int, err error) {
	for n := 1; good < len(data); n++ {
		rest := data[good:]
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			d.add(n == 1, "line %d of %s is half written: it was told to nobody and is cut off", n, path)
			return good, nil
		}
		e, err := decodeEntry(rest[:end])
		switch {
		case err != nil && good+end+1 == len(data):
			d.add(n == 1, "line %d of %s is half written: it was told to nobody and is cut off", n, path)
			return good, nil
		case err != nil:
			d.add(true, "line %d of %s is damaged: %v", n, path, err)
		case n == 1 && e.Format != fileFormat:
			return 0, fmt.Errorf("read the coordinator's state: %s has format %d, this dcol reads %d: use a newer one", path, e.Format, fileFormat)
		case n == 1 && e.Collective != collectiveName:
			return 0, fmt.Errorf("read the coordinator's state: %s is of %q, the authority of %q: put the directory back as it was", path, e.Collective, collectiveName)
		default:
			apply(e)
		}
		good += end + 1
	}
	if len(data) == 0 && !d.lost {
		d.add(true, "%s is empty", path)
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

func encodeEntry(e *entry) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write the coordinator's state: %w", err)
	}
	if len(text) > maxLine {
		return nil, fmt.Errorf("write the coordinator's state: an entry of %d bytes, at most %d", len(text), maxLine)
	}
	sum := sha256.Sum256(text)
	return fmt.Appendf(nil, "%s %s\n", hex.EncodeToString(sum[:sumChars/2]), text), nil
}

func decodeEntry(line []byte) (*entry, error) {
	if len(line) < sumChars+1 || line[sumChars] != ' ' {
		return nil, errors.New("it is no entry")
	}
	text := line[sumChars+1:]
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:sumChars/2]) != string(line[:sumChars]) {
		return nil, errors.New("its checksum is wrong")
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, err
	}
	return &e, nil
}

// append returns when the entries are on the disk. After an error none of them is, or broken is set.
func (s *store) append(entries ...entry) error {
	if s.broken != nil {
		return s.broken
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
	_, err := s.file.WriteAt(lines, s.size)
	if err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		s.size += int64(len(lines))
		return nil
	}
	err = fmt.Errorf("write the coordinator's state: %w", err)
	if cutErr := errors.Join(s.file.Truncate(s.size), s.file.Sync()); cutErr != nil {
		s.broken = fmt.Errorf("%w, and what was written cannot be taken back (%w): start the coordinator anew", err, cutErr)
		return s.broken
	}
	return err
}

// rewrite replaces the file by these entries.
func (s *store) rewrite(collectiveName string, entries []entry) error {
	if s.broken != nil {
		return s.broken
	}
	var lines []byte
	for _, e := range append([]entry{{Format: fileFormat, Collective: collectiveName}}, entries...) {
		line, err := encodeEntry(&e)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	if err := durable.Replace(s.path, lines, 0o600); err != nil {
		return err
	}
	if err := s.reopen(int64(len(lines))); err != nil {
		s.broken = err // the file that is open is none any more
		return err
	}
	return nil
}

// due says whether it is time to write the file anew.
func (s *store) due() bool { return s.size > 2*s.floor+rewriteAt }

func (s *store) reopen(size int64) error {
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the coordinator's state: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return fmt.Errorf("cut off what is half written: %w", err)
	}
	s.close()
	s.file, s.size, s.floor = f, size, size
	return nil
}

func (s *store) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}
