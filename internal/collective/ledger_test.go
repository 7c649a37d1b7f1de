package collective

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	l := ledger{t.TempDir()}
	now := time.Date(2026, 7, 25, 12, 0, 0, 0, time.UTC)
	add := func(serial, name string, end time.Duration) {
		t.Helper()
		if err := l.add(IssuedCertificate{Serial: serial, Name: name, NotBefore: now, NotAfter: now.Add(end), Subnet: netip.MustParsePrefix("10.0.0.0/26")}); err != nil {
			t.Fatal(err)
		}
	}
	day := 24 * time.Hour
	add("01", "alice", -3*day)
	add("02", "alice", -time.Hour) // today, but over
	add("03", "alice", time.Hour)
	add("04", "alice", 300*day)
	add("0a", "bob", day)
	serials := func(nameOrSerial string) string {
		found, err := l.find(nameOrSerial, now)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range found {
			out = append(out, r.Serial)
		}
		return strings.Join(out, " ")
	}
	for who, want := range map[string]string{"alice": "03 04", "bob": "0a", "0A": "0a", "carol": "", "02": "02", "01": ""} {
		if got := serials(who); got != want {
			t.Errorf("%s: %q, want %q", who, got, want)
		}
	}

	// Power fails while a record is written: no certificate was handed out for it.
	file := filepath.Join(l.dir, now.Add(day).Format(time.DateOnly))
	whole := readAll(t, file)
	if err := os.WriteFile(file, append(whole, "0b bob 2026-07"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serials("bob"); got != "0a" {
		t.Errorf("with half a record: %q", got)
	}
	add("0c", "bob", day)
	if got := serials("bob"); got != "0a 0c" {
		t.Errorf("after half a record: %q", got)
	}
	if err := os.WriteFile(file, []byte("0b bob"), 0o600); err != nil { // the very first
		t.Fatal(err)
	}
	add("0d", "bob", day)
	if got := serials("bob"); got != "0d" {
		t.Errorf("after half a first record: %q", got)
	}

	// Damage that no power cut causes must not make the authority forget which certificates to revoke.
	if err := os.WriteFile(file, append([]byte("rubbish\n"), whole...), 0o600); err != nil {
		t.Fatal(err)
	}
	var fault *Error
	if _, err := l.find("bob", now); !errors.As(err, &fault) || fault.File != file || !strings.Contains(err.Error(), "rubbish") {
		t.Errorf("a damaged line: %v", err)
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.add(IssuedCertificate{Serial: "0e", Name: "bob", NotAfter: now.Add(day)}); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("wrote into another file: %v", err)
	}
	if _, err := (ledger{filepath.Join(l.dir, "gone")}).find("bob", now); !errors.Is(err, os.ErrNotExist) || !errors.As(err, &fault) {
		t.Errorf("no ledger: %v", err)
	}
}

// BenchmarkRevoke is the time to expel one of ten thousand members whose certificates are of seven days,
// renewed daily.
func BenchmarkRevoke(b *testing.B) {
	ca, err := InitCA(b.TempDir(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	for day := range 8 {
		end := now.AddDate(0, 0, day)
		var lines strings.Builder
		for i := range 10_000 {
			name := "member" + string(rune('a'+i%26)) + time.Duration(i).String()
			lines.WriteString(IssuedCertificate{Serial: serialText(newSerial()), Name: name, NotBefore: now, NotAfter: end.Add(time.Hour)}.line() + "\n")
		}
		if err := os.WriteFile(filepath.Join(ca.issued.dir, end.UTC().Format(time.DateOnly)), []byte(lines.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := ca.Issue(Request{Name: "mallory", Validity: MemberValidity}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ca.Revoke("mallory", PrivilegeWithdrawn); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSign measures what a coordinator does for each member that joins or renews.
func BenchmarkSign(b *testing.B) {
	root, err := InitCA(b.TempDir(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	ca, err := root.NewSigner(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	key, err := NewKey(filepath.Join(b.TempDir(), "key"))
	if err != nil {
		b.Fatal(err)
	}
	data, err := NewRequest(key, "alice")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := ParseRequest(data)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ca.Sign(r, Terms{Name: "alice"}); err != nil {
			b.Fatal(err)
		}
	}
}

// A follower of the ledger sees each certificate once, whichever process signed it. It sees a half-written entry
// once it is complete, and sees all entries again when the file was replaced.
func TestIssuedSince(t *testing.T) {
	dir := t.TempDir()
	ca, err := InitCA(dir, "example")
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	var r Reading
	want := func(what, names string) {
		t.Helper()
		issued, err := ca.IssuedSince(&r, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range issued {
			got = append(got, one.Name)
			if one.Revoked != (one.Name == "bob") {
				t.Errorf("%s: %+v", what, one)
			}
		}
		slices.Sort(got) // those of different days come by day
		if strings.Join(got, " ") != names {
			t.Errorf("%s: %q, want %q", what, got, names)
		}
	}
	issue := func(by *CA, name string, validity time.Duration) Issued {
		t.Helper()
		out, err := by.Issue(Request{Name: name, Validity: validity})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const day = 24 * time.Hour
	want("at first", "")
	issue(ca, "alice", 10*day)
	issue(other, "bob", 20*day)
	if _, err := other.Revoke("bob", KeyCompromise); err != nil {
		t.Fatal(err)
	}
	want("two", "alice bob")
	want("nothing new", "")
	carol := issue(other, "carol", 10*day)
	want("another", "carol")

	file := filepath.Join(dir, issuedDir, carol.NotAfter.UTC().Format(time.DateOnly))
	whole := readAll(t, file)
	issue(other, "dave", 10*day)
	more := readAll(t, file)
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(more[:len(whole)+20])
	want("half a line", "")
	write(more)
	want("the rest of it", "dave")
	write(whole)
	want("an older file", "alice carol")
	write(append(whole, "what is this\n"...))
	if _, err := ca.IssuedSince(&r, time.Now()); err == nil {
		t.Error("a damaged line is not told")
	}
	want("told once", "")

	next, err := InitCA(t.TempDir(), "example")
	if err != nil {
		t.Fatal(err)
	}
	issue(next, "erin", 10*day)
	ca = next
	want("another authority", "erin")
}
