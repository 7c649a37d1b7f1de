// Command site makes web pages of the Markdown texts, to be opened from a folder without a network:
//
//	go run ./docs/site FOLDER
//
// It fails if a link leads nowhere.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "use it as: go run ./docs/site FOLDER")
		os.Exit(2)
	}
	if err := run(os.DirFS("."), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(filepath.Join(os.Args[1], "index.html"))
}
