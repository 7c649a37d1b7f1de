package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSetConverterUse(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"no table":    {minimal, strings.TrimRight(minimal, "\n") + "\n\n[client.converter]\nuse = \"auto\"\n"},
		"no line":     {minimal + "[client.converter] # mine\nproxy = \"127.0.0.1:1080\"\n", minimal + "[client.converter] # mine\nuse = \"auto\"\nproxy = \"127.0.0.1:1080\"\n"},
		"a line":      {minimal + "[client.converter]\n  use = 'never' # for now\n[session]\n", minimal + "[client.converter]\n  use = \"auto\" # for now\n[session]\n"},
		"a lookalike": {minimal + "# use = \"never\"\n[client.converter]\nuse=\"always\"", minimal + "# use = \"never\"\n[client.converter]\nuse=\"auto\""},
	} {
		path := filepath.Join(t.TempDir(), "dcol.toml")
		// WriteFile alone would leave out what the umask forbids.
		if err := errors.Join(os.WriteFile(path, []byte(c.before), 0o600), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
		if err := SetConverterUse(path, ConvertAuto); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.after {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, c.after)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// A file that the command cannot change safely stays as it is.
func TestSetConverterUseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"a broken file":    "name = ",
		"an inline table":  minimal + "[client]\nconverter = { use = \"never\" }\n",
		"a multiline text": minimal + "[client.converter]\nproxy = \"\"\"\nuse = \"never\"\n\"\"\"\n",
	} {
		path := filepath.Join(t.TempDir(), "dcol.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := SetConverterUse(path, ConvertAlways); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	if err := SetConverterUse(filepath.Join(t.TempDir(), "none"), ConvertAuto); err == nil || !strings.Contains(err.Error(), "dcol agent --sample") {
		t.Errorf("no file: %v", err)
	}
}
