import java.io.File;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;

/**
 * Asks Hadoop's own Configuration what it makes of each case, and writes the answers next to it.
 *
 * cases/NAME/*.xml  the input: core-site.xml, hdfs-site.xml, yarn-site.xml found as on a class path
 * cases/NAME/queries    one question a line: kind, key, and a unit for times
 * cases/NAME/golden     the answers, written here: the question, a tab, the answer with \ and newlines escaped
 * defaults.tsv, deprecated.tsv   Hadoop's defaults for the keys of defaults.keys, and its old key names
 */
public class Golden {
  public static void main(String[] arguments) throws Exception {
    File root = new File(arguments[0]).getAbsoluteFile();
    new org.apache.hadoop.hdfs.HdfsConfiguration();
    new org.apache.hadoop.yarn.conf.YarnConfiguration();
    File[] cases = new File(root, "cases").listFiles(File::isDirectory);
    for (File directory : cases) {
      StringBuilder answers = new StringBuilder();
      for (String question : Files.readAllLines(new File(directory, "queries").toPath())) {
        if (question.isBlank() || question.startsWith("#")) {
          continue;
        }
        answers.append(question).append('\t').append(answer(directory, question)).append('\n');
      }
      Files.writeString(new File(directory, "golden").toPath(), answers);
    }

    Configuration defaults = new Configuration();
    StringBuilder table = new StringBuilder();
    for (String key : Files.readAllLines(new File(root, "defaults.keys").toPath())) {
      table.append(key).append('\t').append(escape(defaults.getRaw(key))).append('\n');
    }
    Files.writeString(new File(root, "defaults.tsv").toPath(), table);

    PrintStream out = System.out;
    java.io.ByteArrayOutputStream dumped = new java.io.ByteArrayOutputStream();
    System.setOut(new PrintStream(dumped));
    Configuration.dumpDeprecatedKeys();
    System.out.flush();
    System.setOut(out);
    TreeMap<String, String> names = new TreeMap<>();
    for (String line : dumped.toString().split("\n")) {
      String[] parts = line.split("\t");
      if (parts.length >= 2) {
        names.put(parts[0], parts[1].trim());
      }
    }
    StringBuilder deprecated = new StringBuilder();
    names.forEach((old, present) -> deprecated.append(old).append('\t').append(present).append('\n'));
    Files.writeString(new File(root, "deprecated.tsv").toPath(), deprecated);
  }

  /** A fresh configuration each time: a failed load must not colour the next answer. */
  static String answer(File directory, String question) throws Exception {
    String[] words = question.split(" ", 3);
    String key = words[1];
    try (URLClassLoader loader =
        new URLClassLoader(new URL[] {directory.toURI().toURL()}, Golden.class.getClassLoader())) {
      Configuration conf = new Configuration();
      conf.setClassLoader(loader);
      switch (words[0]) {
        case "get": return escape(conf.get(key));
        case "trimmed": return escape(conf.getTrimmed(key));
        case "boolean-true": return String.valueOf(conf.getBoolean(key, true));
        case "boolean-false": return String.valueOf(conf.getBoolean(key, false));
        case "integer": return String.valueOf(conf.getLong(key, 42));
        case "size": return String.valueOf(conf.getLongBytes(key, 42));
        case "duration-ms":
          return String.valueOf(conf.getTimeDuration(key, 42, TimeUnit.MILLISECONDS, TimeUnit.NANOSECONDS));
        case "duration-s":
          return String.valueOf(conf.getTimeDuration(key, 42, TimeUnit.SECONDS, TimeUnit.NANOSECONDS));
        case "list": return escape(String.join("|", conf.getTrimmedStringCollection(key)));
        default: throw new IllegalArgumentException(question);
      }
    } catch (RuntimeException error) {
      return "!error";
    }
  }

  static String escape(String value) {
    return value == null ? "-" : "=" + value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t");
  }
}
