package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/detour-collective/dcol/internal/durable"
)

// useLine matches the line of client.converter.use, with what follows its value.
var useLine = regexp.MustCompile(`^(\s*use\s*=\s*)("[^"]*"|'[^']*')(.*)$`)

// tableLine matches a table's header.
var tableLine = regexp.MustCompile(`^\s*\[+\s*([^\]]*?)\s*\]+`)

const converterTable = "client.converter"

// SetConverterUse changes client.converter.use in the file at path, and nothing else.
func SetConverterUse(path string, use UseConverter) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	changed := setConverterUse(string(text), use)
	// Nothing is written that the agent would not read as meant.
	c, err := Parse(path, []byte(changed))
	if err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	if c.Client.Converter.Use != use {
		return fmt.Errorf("%s cannot be changed by this command: write use = %q below [%s]", path, use, converterTable)
	}
	if err := durable.Replace(path, []byte(changed), info.Mode().Perm()); err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	return nil
}

// setConverterUse changes the line if there is one, else adds it below its table's header, else adds the table.
func setConverterUse(text string, use UseConverter) string {
	lines := strings.Split(text, "\n")
	table, header := "", -1
	for i, line := range lines {
		if m := tableLine.FindStringSubmatch(line); m != nil {
			if table = strings.ReplaceAll(m[1], " ", ""); table == converterTable {
				header = i
			}
			continue
		}
		if m := useLine.FindStringSubmatch(line); m != nil && table == converterTable {
			lines[i] = fmt.Sprintf("%s%q%s", m[1], use, m[3])
			return strings.Join(lines, "\n")
		}
	}
	added := fmt.Sprintf("use = %q", use)
	if header >= 0 {
		return strings.Join(append(lines[:header+1], append([]string{added}, lines[header+1:]...)...), "\n")
	}
	return strings.TrimRight(text, "\n") + fmt.Sprintf("\n\n[%s]\n%s\n", converterTable, added)
}
