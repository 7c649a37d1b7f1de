package openvpn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func program(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "openvpn")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	t.Parallel()
	empty, folder, good, old, other := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "openvpn"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := program(t, good, "echo 'OpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)]'; exit 1")
	program(t, old, "echo 'OpenVPN 2.5.1 x86_64-pc-linux-gnu'")
	program(t, other, "echo hello")

	got, version, err := find([]string{"relative", empty, folder, good, old})
	if got != path || version != "2.6.14" || err != nil {
		t.Errorf("found %q, version %q, %v", got, version, err)
	}
	_, _, err = find([]string{empty, folder})
	var missing *MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("nothing there: %v", err)
	}
	if !strings.Contains(err.Error(), "apt-get install openvpn") {
		t.Errorf("%q", err)
	}
	var tooOld *OldError
	if _, _, err = find([]string{old}); !errors.As(err, &tooOld) || tooOld.Version != "2.5.1" {
		t.Errorf("an old one: %v", err)
	}
	if _, _, err = find([]string{other}); err == nil {
		t.Error("another program was taken for OpenVPN")
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{ // empty: not OpenVPN
		"OpenVPN 2.6.14 x86_64-pc-linux-gnu\nlibrary": "2.6.14",
		"OpenVPN 2.7_alpha1 x86_64":                   "2.7_alpha1",
		"OpenVPN 3.0 x":                               "3.0",
		"OpenVPN 99999999999999999999.1 x":            "",
		"OpenVPN git":                                 "",
		"":                                            "",
	} {
		dir := t.TempDir()
		program(t, dir, "printf '"+text+"'")
		if _, version, err := find([]string{dir}); version != want || (err != nil) != (want == "") {
			t.Errorf("%q: version %q, %v", text, version, err)
		}
	}
}
