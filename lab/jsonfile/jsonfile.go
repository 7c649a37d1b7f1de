// Package jsonfile reads and writes the files in which the lab keeps results.
package jsonfile

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/detour-collective/dcol/internal/durable"
)

// Read decodes a file. The error names the file.
func Read(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Write writes a value, indented. It replaces the file atomically, because an interrupt may come at any time.
func Write(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return durable.Replace(path, append(data, '\n'), 0o644)
}
