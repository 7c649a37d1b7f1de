package collective

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// ledger records what an authority has signed. Its directory has a file for each day (UTC), with a line for each
// certificate that expires on that day. So revoking a member reads only records of certificates that have not expired.
type ledger struct{ dir string }

// recordFix is the advice for entries that no command of dcol can have written.
const recordFix = "restore the authority's directory from its backup"

// line returns the ledger's line about a certificate.
func (r IssuedCertificate) line() string {
	subnet := "-"
	if r.Subnet.IsValid() {
		subnet = r.Subnet.String()
	}
	return strings.Join([]string{
		r.Serial, r.Name, r.NotBefore.UTC().Format(time.RFC3339), r.NotAfter.UTC().Format(time.RFC3339), r.Key.String(), subnet,
	}, " ")
}

func parseLine(line string) (r IssuedCertificate, err error) {
	f := strings.Split(line, " ")
	if len(f) != 6 {
		return r, fmt.Errorf("%d words, which is not a record of a certificate", len(f))
	}
	r.Serial, r.Name = f[0], f[1]
	if r.Serial == "" || r.Name == "" {
		return r, errors.New("a record lacks its serial number or name")
	}
	if r.NotBefore, err = time.Parse(time.RFC3339, f[2]); err != nil {
		return r, err
	}
	if r.NotAfter, err = time.Parse(time.RFC3339, f[3]); err != nil {
		return r, err
	}
	if err := r.Key.UnmarshalText([]byte(f[4])); err != nil {
		return r, err
	}
	if f[5] == "-" {
		return r, nil
	}
	if r.Subnet, err = netip.ParsePrefix(f[5]); err != nil {
		return r, err
	}
	return r, nil
}

// add writes a record and returns when it is on the disk, because a certificate without a record could not be revoked
// by name. The caller has the directory's lock.
func (l ledger) add(r IssuedCertificate) (err error) {
	path := filepath.Join(l.dir, r.NotAfter.UTC().Format(time.DateOnly))
	_, statErr := os.Lstat(path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("record a certificate: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("record a certificate: %w", err)
		}
	}()
	if err := durable.Adopt(f, path); err != nil {
		return err
	}
	end, err := wholeLines(f)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(r.line()+"\n"), end); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if statErr != nil {
		return durable.SyncDir(l.dir)
	}
	return nil
}

// wholeLines cuts off an incomplete last line, which a power cut left. Its certificate was not handed out. wholeLines
// returns the file's end.
func wholeLines(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	const longest = 512 // of a line
	tail := make([]byte, min(info.Size(), longest))
	start := info.Size() - int64(len(tail))
	if _, err := f.ReadAt(tail, start); err != nil {
		return 0, err
	}
	end := start + int64(bytes.LastIndexByte(tail, '\n')+1)
	if end == start && start > 0 {
		return 0, fmt.Errorf("%s is empty: %s", f.Name(), recordFix)
	}
	if end == info.Size() {
		return end, nil
	}
	return end, f.Truncate(end)
}

// each calls f with every record of the days for which want is true.
func (l ledger) each(want func(day time.Time) bool, f func(IssuedCertificate)) error {
	return l.added(map[time.Time]int64{}, want, f)
}

// added calls f with the new records of the days for which want is true. read has the offset up to which each day was
// read, and added advances it. Damaged lines are skipped, and reported once.
func (l ledger) added(read map[time.Time]int64, want func(day time.Time) bool, f func(IssuedCertificate)) error {
	days, err := l.days()
	if err != nil {
		return err
	}
	var damaged []error
	for _, day := range days {
		if !want(day) {
			continue
		}
		path := filepath.Join(l.dir, day.Format(time.DateOnly))
		data, err := readFrom(path, read[day])
		if errors.Is(err, errShrunk) { // such as after restoring a backup
			read[day] = 0
			data, err = readFrom(path, 0)
		}
		if err != nil {
			return errors.Join(append(damaged, fmt.Errorf("read the records of issued certificates: %w", err))...)
		}
		whole := bytes.LastIndexByte(data, '\n') + 1 // the rest is being written, or has no effect
		read[day] += int64(whole)
		for line := range strings.Lines(string(data[:whole])) {
			line = strings.TrimSuffix(line, "\n")
			r, err := parseLine(line)
			if err != nil {
				damaged = append(damaged, &Error{File: path, Problem: fmt.Sprintf("the line %.60q is damaged", line), Err: err, Fix: recordFix})
				continue
			}
			f(r)
		}
	}
	return errors.Join(damaged...)
}

var errShrunk = errors.New("it has become shorter")

// readFrom reads a file from an offset on. Usually there is nothing new.
func readFrom(path string, offset int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Size() < offset:
		return nil, errShrunk
	case info.Size() == offset:
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, offset, info.Size()-offset))
}

// days returns the days that have records, in order.
func (l ledger) days() ([]time.Time, error) {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{File: l.dir, Problem: "the records of issued certificates are missing", Err: err, Fix: recordFix}
		}
		return nil, fmt.Errorf("list the records of issued certificates: %w", err)
	}
	var out []time.Time
	for _, f := range files {
		if day, err := time.Parse(time.DateOnly, f.Name()); err == nil {
			out = append(out, day)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out, nil
}

// find returns the valid certificates of a name, or the one with that serial number.
func (l ledger) find(nameOrSerial string, now time.Time) ([]IssuedCertificate, error) {
	var found []IssuedCertificate
	serial := strings.ToLower(nameOrSerial)
	err := l.each(func(day time.Time) bool { return !ended(day, now) }, func(r IssuedCertificate) {
		if r.Serial == serial || r.Name == nameOrSerial && now.Before(r.NotAfter) {
			found = append(found, r)
		}
	})
	return found, err
}

// over returns the serial numbers of certificates that have expired since a day. It leaves out the last days'
// certificates, which are still valid for members whose clock is behind.
func (l ledger) over(since, now time.Time) (map[string]bool, error) {
	out := map[string]bool{}
	err := l.each(func(day time.Time) bool { return !ended(day, since) && ended(day.AddDate(0, 0, 2), now) },
		func(r IssuedCertificate) { out[r.Serial] = true })
	return out, err
}

// ended reports whether a day (UTC) is over.
func ended(day, now time.Time) bool { return !now.Before(day.AddDate(0, 0, 1)) }
